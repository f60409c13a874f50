//! `tether up` and its companions, as a user and an unkind kernel treat them.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and tells what it skips")]

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tether_testkit::Cluster;
use tether_testkit::cluster::{Builder, eventually, signal};

const TETHER: &str = env!("CARGO_BIN_EXE_tether");

fn cluster() -> Builder {
    Cluster::builder(TETHER)
}

/// Runs a command that is expected to end by itself.
fn tether(args: &[&str]) -> Output {
    Command::new(TETHER).args(args).stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether tests that need kernel mounts can run; tells if not.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("{test}: SKIPPED, not running as root");
    }
    root
}

/// Processes that carry the cluster's mark, without the containers of pods, which outlive what started them.
fn processes_of(dir: &Path) -> Vec<String> {
    let mark = format!("@{}\0", dir.display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned() + "\0";
        let is_container = environment.contains("TETHER_CONTAINER=");
        environment.contains("TETHER_CLUSTER=") && environment.contains(&mark) && !is_container
    };
    pids.filter(marked).map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()).collect()
}

fn mounts_below(dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.contains(dir.to_str().unwrap())).map(str::to_owned).collect()
}

fn condition(node: &Value, kind: &str) -> Value {
    let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

/// Asks the API server with kubectl's credentials.
fn get(cluster: &Cluster, path: &str) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        cluster.client().await.request::<Value>(request).await.unwrap_or_default()
    })
}

fn uid(cluster: &Cluster) -> String {
    get(cluster, "/api/v1/namespaces/kube-system")["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn up_prints_a_table_and_leaves_nothing_behind_when_it_is_stopped() {
    let mut cluster = cluster().nodes(2).start();
    let table = cluster.table().to_owned();
    for expected in ["API server  https://127.0.0.1:", "kubeconfig  ", "node-1, node-2", "kubectl --kubeconfig "] {
        assert!(table.contains(expected), "{expected:?} is not in\n{table}");
    }
    let mode = fs::metadata(cluster.kubeconfig()).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "a kubeconfig holds a key");
    let status = cluster.tether(&["status"]);
    assert_eq!(status.status.code(), Some(0), "{}", stdout(&status));
    assert!(stdout(&status).contains("cluster     ready"), "{}", stdout(&status));
    // API server, controllers, CSI driver, two nodes.
    assert_eq!(processes_of(cluster.dir()).len(), 5);

    assert!(cluster.stop().success());
    assert_eq!(processes_of(cluster.dir()), Vec::<String>::new());
    assert_eq!(mounts_below(cluster.dir()), Vec::<String>::new());
    let status = cluster.tether(&["status"]);
    assert_eq!(status.status.code(), Some(3), "{}", stdout(&status));
    assert!(stdout(&status).contains("not running"));
}

#[test]
fn a_second_run_resumes_the_same_cluster_and_can_add_nodes() {
    let mut cluster = cluster().nodes(1).start();
    let before = (uid(&cluster), get(&cluster, "/api/v1/nodes/node-1")["metadata"]["uid"].clone());
    let server = cluster.status()["apiServer"].clone();
    cluster.stop();
    cluster.up();
    let after = (uid(&cluster), get(&cluster, "/api/v1/nodes/node-1")["metadata"]["uid"].clone());
    assert_eq!(before, after);
    assert!(!before.0.is_empty());
    assert_eq!(cluster.status()["apiServer"], server, "a kubeconfig that was copied stays good");
    cluster.stop();

    let dir = cluster.dir().to_owned();
    let grown = self::cluster().dir(&dir).nodes(2).start();
    assert_eq!(grown.status()["nodes"].as_array().unwrap().len(), 2);
    let refused = tether(&["up", "--data-dir", dir.to_str().unwrap()]);
    assert!(stderr(&refused).contains(&format!("another tether (pid {}) runs this cluster", grown.supervisor())));
    drop(grown);
    let refused = tether(&["up", "--nodes", "1", "--data-dir", dir.to_str().unwrap()]);
    assert!(stderr(&refused).contains("--nodes 1: this cluster has 2 nodes"), "{}", stderr(&refused));
}

#[test]
fn after_kill_9_of_up_the_children_are_gone_and_the_next_start_cleans_up() {
    let mut cluster = cluster().nodes(2).start();
    let before = uid(&cluster);
    cluster.kill();
    eventually("children follow their supervisor", || processes_of(cluster.dir()).is_empty().then_some(()));

    // Something that survived all the same: a process of the cluster, a mount, a loop device.
    let marker: Value = serde_json::from_slice(&fs::read(cluster.dir().join("tether.json")).unwrap()).unwrap();
    let mark = format!("{}@{}", marker["id"].as_str().unwrap(), cluster.dir().display());
    let mut survivor = Command::new("sleep").arg("600").env("TETHER_CLUSTER", mark).spawn().unwrap();
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    let image = cluster.dir().join("disk.img");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let device = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let device = device.ok().filter(|output| output.status.success()).map(|output| stdout(&output).trim().to_owned());
    if rustix::process::geteuid().is_root() {
        assert!(!mounts_below(cluster.dir()).is_empty(), "namespaces outlive a killed `up`");
    }

    cluster.up();
    assert!(!survivor.wait().unwrap().success());
    assert_eq!(stranger.try_wait().unwrap(), None, "a stranger is left alone");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    if let Some(device) = device {
        let name = Path::new(&device).file_name().unwrap();
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        let text = fs::read_to_string(backing).unwrap_or_default();
        assert!(!text.contains(cluster.dir().to_str().unwrap()), "{device} still shows {text}");
    }
    assert_eq!(uid(&cluster), before);
    assert_eq!(cluster.status()["ready"], true);
    cluster.stop();
    assert_eq!(mounts_below(cluster.dir()), Vec::<String>::new());
}

#[test]
fn a_crashed_agent_is_restarted_and_its_node_tells() {
    let cluster = cluster().nodes(1).start();
    let first = cluster.pid("node-1").unwrap();
    signal(first, Signal::KILL);
    let second = eventually("the agent is restarted", || cluster.pid("node-1").filter(|pid| *pid != first));
    let condition = eventually("the node tells of the restart", || {
        let condition = condition(&get(&cluster, "/api/v1/nodes/node-1"), "AgentRunning");
        (condition["reason"] == "AgentRestarted").then_some(condition)
    });
    let message = condition["message"].as_str().unwrap();
    assert_eq!(message, "the agent was restarted (1 so far): killed by signal 9");
    let status = eventually("it is ready again", || Some(cluster.status()).filter(|status| status["ready"] == true));
    let node = status["components"].as_array().unwrap().iter().find(|component| component["name"] == "node-1").unwrap();
    assert_eq!((&node["restarts"], &node["pid"]), (&1.into(), &second.into()));
}

#[test]
fn while_an_agent_cannot_run_its_node_says_so() {
    let cluster = cluster().nodes(1).start();
    // Its credentials are gone: it starts and ends, again and again.
    let kubeconfig = cluster.dir().join("nodes/node-1/kubeconfig");
    let hidden = kubeconfig.with_extension("hidden");
    fs::rename(&kubeconfig, &hidden).unwrap();
    signal(cluster.pid("node-1").unwrap(), Signal::KILL);
    let condition = eventually("the node tells that its agent is down", || {
        let condition = condition(&get(&cluster, "/api/v1/nodes/node-1"), "AgentRunning");
        let message = condition["message"].as_str().unwrap_or_default().to_owned();
        (condition["status"] == "False" && message.contains("exited with code 1")).then_some(condition)
    });
    assert_eq!(condition["reason"], "AgentExited");
    let status = cluster.tether(&["status"]);
    assert_eq!(status.status.code(), Some(4), "{}", stdout(&status));
    fs::rename(&hidden, &kubeconfig).unwrap();
    eventually("it recovers", || (cluster.status()["ready"] == true).then_some(()));
}

#[test]
fn a_crashed_api_server_comes_back_with_everything() {
    let cluster = cluster().nodes(1).start();
    let before = uid(&cluster);
    signal(cluster.pid("apiserver").unwrap(), Signal::KILL);
    eventually("the API server is back", || (uid(&cluster) == before).then_some(()));
    eventually("all is ready", || (cluster.status()["ready"] == true).then_some(()));
}

#[test]
fn killing_an_agent_unmounts_nothing() {
    if !is_root("killing_an_agent_unmounts_nothing") {
        return;
    }
    let cluster = cluster().nodes(2).start();
    let mountinfo = |pid: u32| fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let point = cluster.dir().join("nodes/node-1/volume");
    fs::create_dir(&point).unwrap();
    let inside = |pid: u32, command: &[&str]| {
        let status = Command::new("nsenter").arg(format!("--mount=/proc/{pid}/ns/mnt")).args(command).status();
        assert!(status.unwrap().success(), "{command:?}");
    };
    let first = cluster.pid("node-1").unwrap();
    let text = point.to_str().unwrap();
    inside(first, &["mount", "-t", "tmpfs", "tmpfs", text]);
    assert!(mountinfo(first).contains(text));
    assert!(!mountinfo(cluster.pid("node-2").unwrap()).contains(text), "another node does not see it");
    assert!(mounts_below(&point).is_empty(), "nor does the host");

    signal(first, Signal::KILL);
    let second = eventually("the agent is restarted", || cluster.pid("node-1").filter(|pid| *pid != first));
    eventually("the new agent finds the mount", || mountinfo(second).contains(text).then_some(()));
}

#[test]
fn a_cluster_in_the_background_is_stopped_by_down() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("cluster");
    let on = |args: &[&str]| {
        Command::new(TETHER).args(args).env("TETHER_DATA_DIR", &dir).stdin(Stdio::null()).output().unwrap()
    };
    let down = on(&["down"]);
    assert!(stderr(&down).contains("there is no cluster here"), "{}", stderr(&down));
    let up = on(&["up", "--detach", "--nodes", "1", "--api-port", "0"]);
    assert!(up.status.success(), "{}", stderr(&up));
    let last = stdout(&up).lines().last().unwrap().to_owned();
    assert!(last.starts_with("ready") && last.contains("tether down"), "{last}");
    assert_eq!(on(&["status"]).status.code(), Some(0));

    let again = on(&["up", "--detach"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("runs this cluster"), "{}", stderr(&again));

    let down = on(&["down"]);
    assert!(stdout(&down).starts_with("stopped the cluster"), "{}", stdout(&down));
    assert_eq!(on(&["status"]).status.code(), Some(3));
    assert_eq!(processes_of(&dir), Vec::<String>::new());
    let down = on(&["down"]);
    assert!(down.status.success() && stdout(&down).contains("was not running"), "{}", stdout(&down));
}

#[test]
fn wrong_directories_ports_and_numbers_are_refused_with_words() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("foreign")).unwrap();
    fs::write(path("foreign/thesis.tex"), "").unwrap();
    fs::write(path("file"), "").unwrap();
    fs::create_dir(path("newer")).unwrap();
    let marker = r#"{"kind": "tether-cluster", "format": 99, "writtenBy": "9.9.9"}"#;
    fs::write(path("newer/tether.json"), marker).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let owner = format!("(pid {})", std::process::id());
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--data-dir", &path("foreign")], 1, "holds files that are not Tether's (such as \"thesis.tex\")"),
        (&["--data-dir", &path("file")], 1, "is not a directory"),
        (&["--data-dir", &path("newer")], 1, "written by a newer tether 9.9.9 (format 99"),
        (&["--data-dir", "/proc/tether"], 1, "choose a directory that you may write to"),
        (&["--data-dir", &path("port"), "--api-port", &port], 1, &owner),
        (&["--data-dir", &path("new"), "--nodes", "0"], 2, "0 is not in 1..=64"),
        (&["--data-dir", &path("new"), "--nodes", "65"], 2, "65 is not in 1..=64"),
        (&["--data-dir", &path("new"), "--api-port", "70000"], 2, "70000 is not in 0..=65535"),
    ];
    for (args, code, expected) in cases {
        for detach in [&[][..], &["--detach"]] {
            let output = tether(&[&["up"], *args, detach].concat());
            assert_eq!(output.status.code(), Some(*code), "{args:?} {detach:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(expected), "{args:?} {detach:?}: {}", stderr(&output));
        }
    }
    assert!(!Path::new(&path("new")).exists(), "a wrong command line changes nothing");
}

#[test]
fn a_support_bundle_holds_logs_and_objects_and_no_secret() {
    let mut cluster = cluster().nodes(1).start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let body = serde_json::json!({"metadata": {"name": "db"}, "stringData": {"password": "hunter2-in-plain"}});
        let request = http::Request::post("/api/v1/namespaces/default/secrets");
        let request = request.header("content-type", "application/json").body(body.to_string().into_bytes()).unwrap();
        cluster.client().await.request::<Value>(request).await.unwrap();
    });
    let file = cluster.dir().with_extension("tar.gz");
    let file = file.to_str().unwrap();
    let output = cluster.tether(&["support-bundle", "--file", file]);
    assert!(output.status.success(), "{}", stderr(&output));
    let (names, all) = unpack(Path::new(file));
    for expected in ["bundle.json", "host.txt", "processes.txt", "logs/apiserver.log", "logs/node-1.log", "logs/up.log"]
    {
        assert!(names.iter().any(|name| name.ends_with(expected)), "{expected} is not in {names:?}");
    }
    for expected in ["objects/core/nodes.yaml", "objects/core/secrets.yaml", "objects/storage.k8s.io/csinodes.yaml"] {
        assert!(names.iter().any(|name| name.ends_with(expected)), "{expected} is not in {names:?}");
    }
    assert!(all.contains("name: db"), "the Secret itself is there");
    let encoded = "aHVudGVyMi1pbi1wbGFpbg==";
    for secret in ["hunter2-in-plain", encoded, "PRIVATE KEY", "client-key-data", "eyJhbGciOi"] {
        assert!(!all.contains(secret), "{secret} is in the bundle");
    }

    cluster.stop();
    let output = cluster.tether(&["support-bundle", "--file", file]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("not in the bundle: objects: "), "{}", stderr(&output));
    assert!(unpack(Path::new(file)).0.iter().any(|name| name.ends_with("logs/apiserver.log")));
}

/// The names in an archive, and all its texts as one.
fn unpack(file: &Path) -> (Vec<String>, String) {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(file).unwrap()));
    let (mut names, mut all) = (Vec::new(), String::new());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        names.push(entry.path().unwrap().display().to_string());
        entry.read_to_string(&mut all).unwrap();
    }
    (names, all)
}

#[test]
fn without_root_everything_but_mounts_works_and_says_so() {
    // As root, become nobody; otherwise this is what every other test here does.
    let mut builder = cluster().nodes(1);
    let home = tempfile::tempdir().unwrap();
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
        // Nobody may not look into the directory that the binary was built in.
        fs::copy(TETHER, home.path().join("tether")).unwrap();
        builder = Cluster::builder(home.path().join("tether")).nodes(1);
        builder = builder.wrapper(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    let mut cluster = builder.dir(home.path().join("data")).start();
    assert!(cluster.table().contains("mounts      unavailable (not running as root)"), "{}", cluster.table());
    assert_eq!(cluster.status()["ready"], true);
    let node = get(&cluster, "/api/v1/nodes/node-1");
    let mounts = condition(&node, "KernelMounts");
    assert_eq!(mounts["status"], "False");
    assert_eq!(mounts["message"], "no kernel devices and mounts: not running as root");
    assert_eq!(condition(&node, "Ready")["status"], "True");
    assert!(cluster.stop().success());
    assert_eq!(processes_of(cluster.dir()), Vec::<String>::new());
}
