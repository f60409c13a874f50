//! Creates, updates and lists by a number of clients at once, each with connections of its own.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use http::Method;
use kube::Client;

use super::target::{self, Namespaces, Target, call, expect};
use super::{Figure, Plan, Samples};

/// Where all of it happens.
pub(super) const NAMESPACES: Namespaces = Namespaces { family: "load", count: 1 };

pub(super) async fn creates(target: &Target, plan: &Plan) -> Result<Figure> {
    let (samples, took) = each_object(target, plan, Method::POST).await?;
    Ok(samples.figure("create", took))
}

pub(super) async fn updates(target: &Target, plan: &Plan) -> Result<Figure> {
    let (samples, took) = each_object(target, plan, Method::PUT).await?;
    Ok(samples.figure("update", took))
}

/// Every client writes its share of the objects, one after the other.
async fn each_object(target: &Target, plan: &Plan, method: Method) -> Result<(Samples, Duration)> {
    let clients = try_join_all((0..plan.clients).map(|_| target.another())).await?;
    // Connections are made before the clock starts.
    try_join_all(clients.iter().map(|client| call(client, Method::GET, "/version", None))).await?;
    let started = Instant::now();
    let tasks = clients.into_iter().enumerate().map(|(index, client)| {
        let (plan, method) = (*plan, method.clone());
        let work = async move { write_share(&client, &plan, index, &method).await };
        async move { tokio::spawn(work).await? }
    });
    let mut all = Samples::default();
    for samples in try_join_all(tasks).await? {
        all.append(samples);
    }
    Ok((all, started.elapsed()))
}

async fn write_share(client: &Client, plan: &Plan, index: usize, method: &Method) -> Result<Samples> {
    let mut samples = Samples::default();
    for number in (index..plan.objects).step_by(plan.clients) {
        let name = format!("object-{number}");
        let mark = u128::from(method == Method::PUT);
        let object = target::configmap(&name, plan.size, mark);
        let path = match *method {
            Method::PUT => format!("{}/{name}", NAMESPACES.configmaps(0)),
            _ => NAMESPACES.configmaps(0),
        };
        let sent = Instant::now();
        let (code, answer) = call(client, method.clone(), &path, Some(&object)).await?;
        expect(code, &answer)?;
        samples.add(sent.elapsed());
    }
    Ok(samples)
}

/// Lists of everything, read to the last byte, one after the other.
pub(super) async fn lists(target: &Target, plan: &Plan) -> Result<Figure> {
    let mut samples = Samples::default();
    let started = Instant::now();
    for _ in 0..plan.lists {
        let sent = Instant::now();
        let request = http::Request::get(NAMESPACES.configmaps(0)).body(Vec::new())?;
        let body = target.client.send(request.map(Into::into)).await?.into_body();
        body.collect_bytes().await?;
        samples.add(sent.elapsed());
    }
    Ok(samples.figure(&format!("list of {}", plan.objects), started.elapsed()))
}
