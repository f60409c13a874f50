//! NBD, as its usual clients use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::ServerConfig;
use tempfile::TempDir;
use tether_engine::frontend::nbd::export::{Lineage, Volume};
use tether_engine::frontend::nbd::listen::{Security, uri};
use tether_engine::frontend::nbd::tls;
use tether_engine::host::Address;

use crate::host::{Handle, Host, Listener, Order};
use crate::ram::Ram;
use crate::tools::{Test, Verdict, attempt, command, need, run, succeed, text};

const MIB: u64 = 1 << 20;

pub const TESTS: &[Test] = &[
    ("nbd_is_what_nbdinfo_expects", nbdinfo),
    ("nbd_copies_with_nbdcopy_are_identical", nbdcopy),
    ("nbd_images_of_qemu_img_are_identical", qemu_img),
    ("nbd_commands_of_qemu_io_do_what_they_say", qemu_io),
    ("nbd_under_load_fio_reads_what_it_wrote", fio),
    ("nbd_on_tcp_with_tls_wants_a_certificate", tls_clients),
    ("nbd_follows_the_volumes_size", resize),
    ("nbd_waits_while_suspended_and_fails_when_fenced", suspended_and_fenced),
];

/// A volume served in a thread of this process.
struct Served {
    dir: TempDir,
    uri: String,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(size: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let address = Address::Unix(dir.path().join("v1.sock"));
        Self::at(dir, size, &address, None)
    }

    fn at(dir: TempDir, size: u64, address: &Address, tls: Option<Arc<ServerConfig>>) -> Self {
        let lineage = Some(Lineage("line-1".to_owned()));
        let volume = Volume { name: "v1".to_owned(), size, read_only: false, block: 512, lineage };
        let (mut host, handle) = Host::new(Ram::new(size).expect("memory"), volume);
        let security = Security::of(address, tls).expect("the address must be allowed");
        let listener = Listener::bind(address).expect("the address must be free");
        let uri = uri(&listener.address().expect("an address"), "v1", &security);
        host.listeners.push((listener, security));
        let thread = Some(std::thread::spawn(move || host.run()));
        Self { dir, uri, handle, thread }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.handle.order(Order::Stop);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the host panicked");
    }
}

/// A file with data, runs of zeroes and a hole, of an odd number of blocks.
fn image(path: &Path, size: u64) {
    let mut content = vec![0; size as usize];
    for (i, chunk) in content.chunks_mut(4096).enumerate().filter(|(i, _)| i % 3 != 0) {
        chunk.iter_mut().enumerate().for_each(|(j, byte)| *byte = (i * 31 + j * 7 + j / 251) as u8);
    }
    fs::write(path, content).expect("a file");
}

fn nbdinfo() -> Verdict {
    need(&["nbdinfo"])?;
    let served = Served::new(8 * MIB);
    let info = run("nbdinfo", &[&served.uri]);
    let expected = [
        "export-size: 8388608",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "can_multi_conn: true",
        "can_df: true",
        "can_cache: false",
        "can_fast_zero: false",
        "base:allocation",
        "block_size_minimum: 512",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
        "structured packets",
    ];
    for line in expected {
        assert!(info.contains(line), "{line:?} is not in\n{info}");
    }
    let list = run("nbdinfo", &["--list", &served.uri]);
    assert!(list.contains("export=\"v1\"") && list.contains("export=\"v1@line-1\""), "{list}");
    let map = run("nbdinfo", &["--map", &served.uri]);
    assert!(map.contains("hole,zero"), "{map}");
    let unknown = attempt("nbdinfo", &[&served.uri.replace("/v1?", "/v2?")]);
    assert!(!unknown.status.success(), "there is no such export");
    Ok(())
}

fn nbdcopy() -> Verdict {
    need(&["nbdcopy"])?;
    let served = Served::new(48 * MIB);
    let (source, back) = (served.path("source"), served.path("back"));
    image(&source, 48 * MIB);
    for args in [vec![], vec!["--connections=4", "--requests=64"], vec!["--request-size=33554432"]] {
        run("nbdcopy", &[args.as_slice(), &["--flush", text(&source), &served.uri]].concat());
        let _ = fs::remove_file(&back);
        run("nbdcopy", &[args.as_slice(), &[&served.uri, text(&back)]].concat());
        assert!(fs::read(&source).ok() == fs::read(&back).ok(), "the copy differs with {args:?}");
    }
    Ok(())
}

fn qemu_img() -> Verdict {
    need(&["qemu-img"])?;
    let served = Served::new(16 * MIB);
    let source = served.path("source");
    image(&source, 16 * MIB);
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&source), &served.uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &served.uri]);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &served.uri]);
    assert!(map.contains("\"data\": false") && map.contains("\"data\": true"), "{map}");
    let copy = served.path("copy.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &served.uri, text(&copy)]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", text(&source), text(&copy)]);
    Ok(())
}

fn qemu_io() -> Verdict {
    need(&["qemu-io"])?;
    let served = Served::new(64 * MIB);
    let io = |commands: &[&str]| {
        let mut args = vec!["-f", "raw", "-t", "none"];
        args.extend(commands.iter().flat_map(|command| ["-c", *command]));
        args.push(&served.uri);
        let said = run("qemu-io", &args);
        assert!(!said.contains("failed") && !said.contains("error"), "{said}");
    };
    io(&["write -P 1 0 64k", "write -f -P 2 4k 4k", "flush", "read -P 1 0 4k", "read -P 2 4k 4k", "read -P 1 8k 56k"]);
    io(&["write -z 0 8k", "read -P 0 0 8k", "write -z -u 16k 8k", "read -P 0 16k 8k", "read -P 1 8k 8k"]);
    io(&["write -P 3 32M 16M", "read -P 3 32M 16M", "discard 40M 1M", "flush", "read -P 3 32M 8M"]);
    io(&["aio_write -P 4 0 1M", "aio_write -P 5 1M 1M", "aio_flush", "read -P 4 0 1M", "read -P 5 1M 1M"]);
    Ok(())
}

fn fio() -> Verdict {
    need(&["fio"])?;
    if !run("fio", &["--enghelp"]).contains("nbd") {
        return Err(crate::tools::Skip("fio has no nbd engine".to_owned()));
    }
    let served = Served::new(64 * MIB);
    let own = TempDir::new().expect("a directory");
    let job = |name: &str, more: &[&str]| {
        let uri = format!("--uri={}", served.uri);
        let name = format!("--name={name}");
        let common =
            ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--size=64M", "--output-format=terse"];
        // It leaves files where it runs.
        let args = [&[name.as_str(), "--ioengine=nbd", uri.as_str()], common.as_slice(), more].concat();
        succeed(command("fio").args(args).current_dir(own.path()));
    };
    job("small", &["--rw=randwrite", "--bs=4k", "--iodepth=32"]);
    job("mixed", &["--rw=randrw", "--bsrange=512-256k", "--iodepth=16", "--fsync=16", "--bs_unaligned=0"]);
    job("long", &["--rw=write", "--bs=1M", "--iodepth=16"]);
    Ok(())
}

/// Certificates in the files that `libnbd` and `qemu` expect of a directory.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "volumes");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        Self { issuer }
    }

    fn issue(&self, dir: &Path, name: &str, purpose: ExtendedKeyUsagePurpose) {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("parameters");
        params.extended_key_usages = vec![purpose];
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        fs::create_dir_all(dir).expect("a directory");
        fs::write(dir.join("ca-cert.pem"), self.issuer.pem()).expect("a file");
        fs::write(dir.join(format!("{name}-cert.pem")), certificate.pem()).expect("a file");
        fs::write(dir.join(format!("{name}-key.pem")), key.serialize_pem()).expect("a file");
    }
}

fn tls_clients() -> Verdict {
    need(&["nbdinfo", "nbdcopy", "qemu-img"])?;
    let dir = tempfile::tempdir().expect("a directory");
    let (server, client, stranger) = (dir.path().join("s"), dir.path().join("c"), dir.path().join("x"));
    let authority = Authority::new();
    authority.issue(&server, "server", ExtendedKeyUsagePurpose::ServerAuth);
    authority.issue(&client, "client", ExtendedKeyUsagePurpose::ClientAuth);
    // Signed by somebody else, but it trusts the server.
    Authority::new().issue(&stranger, "client", ExtendedKeyUsagePurpose::ClientAuth);
    fs::copy(client.join("ca-cert.pem"), stranger.join("ca-cert.pem")).expect("a file");
    let config = tls::configure(&tls::Files {
        certificate: server.join("server-cert.pem"),
        key: server.join("server-key.pem"),
        client_authority: server.join("ca-cert.pem"),
    });
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let served = Served::at(dir, 16 * MIB, &address, Some(config.expect("TLS must be configured")));
    let with = |certificates: &Path| format!("{}?tls-certificates={}", served.uri, certificates.display());
    assert!(served.uri.starts_with("nbds://"));

    let (source, back) = (served.path("source"), served.path("back"));
    image(&source, 16 * MIB);
    assert!(run("nbdinfo", &[&with(&client)]).contains("export-size: 16777216"));
    run("nbdcopy", &[text(&source), &with(&client)]);
    run("nbdcopy", &[&with(&client), text(&back)]);
    assert!(fs::read(&source).ok() == fs::read(&back).ok(), "the copy differs");
    let clear = served.uri.replace("nbds://", "nbd://");
    let refused = attempt("nbdinfo", &[&clear]);
    assert!(!refused.status.success(), "nothing is told in clear");
    assert!(!attempt("nbdinfo", &[&with(&stranger)]).status.success(), "a stranger's certificate is worth nothing");

    let port = served.uri.rsplit(':').next().and_then(|rest| rest.split('/').next()).expect("a port");
    let object = format!("tls-creds-x509,id=t,endpoint=client,dir={}", client.display());
    let image = format!("driver=nbd,host=127.0.0.1,port={port},export=v1,tls-creds=t");
    let info = run("qemu-img", &["info", "--object", &object, "--image-opts", &image]);
    assert!(info.contains("16 MiB"), "{info}");
    Ok(())
}

fn resize() -> Verdict {
    need(&["nbdinfo", "qemu-io"])?;
    let served = Served::new(8 * MIB);
    assert_eq!(run("nbdinfo", &["--size", &served.uri]).trim(), "8388608");
    served.handle.order(Order::Resize(16 * MIB));
    assert_eq!(run("nbdinfo", &["--size", &served.uri]).trim(), "16777216");
    let said = run("qemu-io", &["-f", "raw", "-c", "write -P 9 12M 64k", "-c", "read -P 9 12M 64k", &served.uri]);
    assert!(!said.contains("failed"), "{said}");
    Ok(())
}

fn suspended_and_fenced() -> Verdict {
    need(&["qemu-io", "nbdcopy"])?;
    let served = Served::new(8 * MIB);
    served.handle.order(Order::Suspend(true));
    let child = command("qemu-io")
        .args(["-f", "raw", "-c", "write -P 6 0 1M", "-c", "flush", &served.uri])
        .spawn()
        .expect("qemu-io must start");
    served.handle.order(Order::Suspend(false));
    assert!(child.wait_with_output().expect("qemu-io must end").status.success(), "what waited goes on");
    served.handle.order(Order::Fence);
    let said = attempt("qemu-io", &["-f", "raw", "-c", "read 0 4k", &served.uri]);
    let said = format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.contains("Cannot send after transport endpoint shutdown"), "{said}");
    Ok(())
}
