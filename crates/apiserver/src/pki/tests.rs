//! The directory of an authority: made once, kept, and looked at with suspicion.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use jiff::SignedDuration;

use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

struct Fixture {
    _home: tempfile::TempDir,
    dir: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("data/pki");
        Self { _home: home, dir }
    }

    fn open(&self) -> Result<Pki, PkiError> {
        Pki::open_or_create(&self.dir, now())
    }

    /// What opening says after the file was replaced.
    fn error_with(&self, file: &str, text: &str) -> String {
        let path = self.dir.join(file);
        let kept = fs::read(&path).unwrap();
        fs::write(&path, text).unwrap();
        let error = self.open().unwrap_err().to_string();
        fs::write(&path, kept).unwrap();
        error.replace(&format!("{}/", self.dir.display()), "").replace(&self.dir.display().to_string(), "DIR")
    }
}

#[test]
fn an_authority_is_made_once() {
    let fixture = Fixture::new();
    let first = fixture.open().unwrap();
    let second = fixture.open().unwrap();
    assert_eq!(first.ca_pem(), second.ca_pem());
    assert_eq!(first.token_key(), second.token_key());
    for (file, mode) in [("ca.key", 0o600), ("sa.key", 0o600), ("ca.crt", 0o644), ("format", 0o644)] {
        let found = fs::metadata(fixture.dir.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{file}");
    }
    assert_eq!(fs::metadata(&fixture.dir).unwrap().permissions().mode() & 0o777, 0o700);
    let siblings = fs::read_dir(fixture.dir.parent().unwrap()).unwrap().count();
    assert_eq!(siblings, 1, "nothing is left over beside the directory");
}

#[test]
fn damage_is_told_not_repaired() {
    let fixture = Fixture::new();
    fixture.open().unwrap();
    let other = Fixture::new();
    let stranger = other.open().unwrap();
    let foreign_key = fs::read_to_string(other.dir.join("ca.key")).unwrap();
    let cases = [
        ("ca.crt", "", "ca.crt is damaged: there is no PEM certificate in it"),
        ("ca.crt", stranger.ca_pem(), "ca.key is damaged: the key does not belong to the certificate in ca.crt"),
        ("ca.key", "rubbish", "ca.key is damaged: there is no private key in it"),
        ("ca.key", &foreign_key, "ca.key is damaged: the key does not belong to the certificate in ca.crt"),
        ("sa.key", "", "sa.key is damaged: there is no private key in it"),
        ("format", "tether-pki 2\n", "DIR was written by a newer Tether (format 2, this one knows 1)"),
        ("format", "hello", "format is damaged: expected `tether-pki 1`"),
    ];
    for (file, text, expected) in cases {
        assert_eq!(fixture.error_with(file, text), expected);
    }
    fs::remove_file(fixture.dir.join("ca.key")).unwrap();
    let error = fixture.open().unwrap_err().to_string();
    assert!(error.ends_with("ca.key is missing; restore it from a backup, or start with a new directory"), "{error}");
    assert!(!fixture.dir.join("ca.key").exists(), "no key is made up");
}

#[test]
fn a_strange_directory_is_left_alone() {
    let fixture = Fixture::new();
    fs::create_dir_all(&fixture.dir).unwrap();
    fs::write(fixture.dir.join("notes.txt"), "mine").unwrap();
    let error = fixture.open().unwrap_err();
    assert!(matches!(error, PkiError::Foreign(_)), "{error}");
    assert_eq!(fs::read_dir(&fixture.dir).unwrap().count(), 1);
}

#[test]
fn an_empty_directory_is_filled() {
    let fixture = Fixture::new();
    fs::create_dir_all(&fixture.dir).unwrap();
    fixture.open().unwrap();
    assert!(fixture.dir.join("ca.crt").exists());
}

#[test]
fn leaves_are_kept_until_they_should_say_something_else() {
    let fixture = Fixture::new();
    let pki = fixture.open().unwrap();
    let first = pki.server(&["10.0.0.1".into(), "api.example.com".into()], now()).unwrap();
    let same = pki.server(&["api.example.com".into(), "10.0.0.1".into()], now()).unwrap();
    assert_eq!(first.certificate_pem, same.certificate_pem);
    let other = pki.server(&["10.0.0.2".into()], now()).unwrap();
    assert_ne!(first.certificate_pem, other.certificate_pem);
    let mode = fs::metadata(fixture.dir.join("apiserver.pem")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);

    let admin = pki.admin(now()).unwrap();
    let later = pki.admin(now() + days(180)).unwrap();
    assert_eq!(admin.certificate_pem, later.certificate_pem);
    let renewed = pki.admin(now() + days(185)).unwrap();
    assert_ne!(admin.certificate_pem, renewed.certificate_pem);

    let node = pki.client("x", "system:node:a", &["system:nodes"], now()).unwrap();
    let moved = pki.client("x", "system:node:b", &["system:nodes"], now()).unwrap();
    assert_ne!(node.certificate_pem, moved.certificate_pem);
}

#[test]
fn damaged_leaves_are_told() {
    let fixture = Fixture::new();
    let pki = fixture.open().unwrap();
    let mine = pki.admin(now()).unwrap();
    let other = Fixture::new();
    let foreign = other.open().unwrap().admin(now()).unwrap();
    let cases = [
        (String::new(), "it does not hold a certificate and its key"),
        (mine.certificate_pem.clone(), "it does not hold a certificate and its key"),
        (format!("{}{}", mine.certificate_pem, foreign.key_pem), "key and certificate do not belong together"),
        (format!("{}{}", foreign.certificate_pem, foreign.key_pem), "the certificate was issued by another authority"),
    ];
    for (text, expected) in cases {
        fs::write(fixture.dir.join("admin.pem"), text).unwrap();
        let error = pki.admin(now()).unwrap_err().to_string();
        assert!(error.contains(expected) && error.ends_with("remove the file to have it issued again"), "{error}");
    }
    fs::remove_file(fixture.dir.join("admin.pem")).unwrap();
    pki.admin(now()).unwrap();
}

#[test]
fn names_do_not_leave_the_directory() {
    let fixture = Fixture::new();
    let pki = fixture.open().unwrap();
    for name in ["", "../ca", "a/b", ".hidden"] {
        assert!(matches!(pki.client(name, "u", &[], now()), Err(PkiError::Name(_))), "{name:?}");
    }
}

#[test]
fn an_expired_authority_is_told() {
    let fixture = Fixture::new();
    fixture.open().unwrap();
    let error = Pki::open(&fixture.dir, now() + days(3651)).unwrap_err();
    assert!(matches!(error, PkiError::AuthorityExpired(_)), "{error}");
}

#[test]
fn nothing_secret_is_printed() {
    let fixture = Fixture::new();
    let pki = fixture.open().unwrap();
    let admin = pki.admin(now()).unwrap();
    let key_line = admin.key_pem.lines().nth(1).unwrap();
    for shown in [format!("{pki:?}"), format!("{admin:?}")] {
        assert!(!shown.contains(key_line) && shown.len() < 200, "{shown}");
    }
}

#[test]
fn a_kubeconfig_holds_everything() {
    let fixture = Fixture::new();
    let pki = fixture.open().unwrap();
    let admin = pki.admin(now()).unwrap();
    let text = Kubeconfig {
        cluster: "tether",
        server: "https://127.0.0.1:6443",
        ca_pem: pki.ca_pem(),
        user: "admin",
        credentials: &admin,
    }
    .render();
    let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    assert_eq!(config.current_context.as_deref(), Some("admin@tether"));
    let cluster = config.clusters[0].cluster.as_ref().unwrap();
    assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
    assert!(cluster.certificate_authority_data.is_some());
    assert!(config.auth_infos[0].auth_info.as_ref().unwrap().client_certificate_data.is_some());
}
