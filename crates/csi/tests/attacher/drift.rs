//! What the driver lists is compared with what the attachments say.

use tether_csi::fake::{Answer, Asked, Call, Profile};
use tether_csi::proto::controller_service_capability::rpc::Type as Rpc;
use tonic::Code;

use crate::lab::*;

async fn listing() -> (Lab, Running) {
    let profile = Profile::new(DRIVER).with(Rpc::ListVolumes).with(Rpc::ListVolumesPublishedNodes);
    let mut lab = Lab::new(profile).await;
    lab.settings.max_entries = 1;
    lab.register("node-1", "id-1").await;
    let running = lab.attacher().await;
    (lab, running)
}

#[tokio::test]
async fn a_volume_that_was_taken_away_behind_our_back_is_published_again() {
    let (lab, _running) = listing().await;
    for name in ["a", "b"] {
        lab.volume(name, |_| {}).await;
        lab.attach(&format!("va-{name}"), name).await;
        lab.until_attached(&format!("va-{name}")).await;
    }
    lab.driver.take_asked();
    lab.driver.answer(Call::List, Answer::Fail(Code::Aborted, "the token is stale".into()));
    lab.driver.set_published("handle-b", &[]);
    eventually("published again", || lab.driver.published("handle-b").contains("id-1")).await;
    let asked = lab.driver.take_asked();
    assert!(matches!(&asked[..], [Asked::Publish(request), ..] if request.volume_id == "handle-b"), "{asked:?}");
}

#[tokio::test]
async fn what_is_published_without_an_attachment_is_nobodys_business() {
    let (lab, _running) = listing().await;
    lab.driver.set_published("handle-foreign", &["id-1"]);
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    lab.until_attached("va").await;
    lab.delete("va").await;
    until_gone(&lab.attachments(), "va").await;
    assert_eq!(lab.driver.published("handle-foreign").len(), 1);
}
