//! Starting and stopping: one clear line and a non-zero exit where a node cannot start, and nothing changed by that.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Fresh, Node, Process, disk_bytes, serve};

/// Runs a start that must fail: one line on stderr that holds each of `words`, exit code not 0, and soon.
fn assert_refused(command: Command, words: &[&str]) {
    let mut process = Process::start(command);
    let status = process.end();
    let said = process.rest();
    assert!(status.code().is_some_and(|code| code != 0), "an exit with a code that tells it failed: {status} {said}");
    let errors: Vec<&str> = said.lines().filter(|line| !line.contains(" INFO ") && !line.contains(" WARN ")).collect();
    assert_eq!(errors.len(), 1, "one clear line: {said}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} is missing in: {said}");
    }
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_empty_directory_is_founded_and_found_again() {
    let dir = TempDir::new().unwrap();
    let node = Node::start(dir.path());
    let cluster = node.post("GET", &json!({"key": "k"})).headers["tenure-cluster"].clone();
    node.call("CREATE", &json!({"key": "k", "type": "lease"}));
    assert_eq!(node.stop().code(), Some(0), "SIGTERM ends it well");
    let node = Node::start(dir.path());
    let read = node.post("GET", &json!({"key": "k"}));
    assert_eq!(read.headers["tenure-cluster"], cluster);
    assert_ne!(read.json()["result"], json!(null));
}

#[test]
fn a_directory_in_use_is_refused() {
    let fresh = Fresh::start();
    let data = fresh.data();
    assert_refused(serve(&data), &["in use", data.to_str().unwrap()]);
    fresh.node.call("CREATE", &json!({"key": "k", "type": "lease"}));
}

#[test]
fn a_foreign_directory_is_refused_and_left_alone() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("holiday.jpg"), "a picture").unwrap();
    assert_refused(serve(dir.path()), &[dir.path().to_str().unwrap()]);
    assert_eq!(names(dir.path()), ["holiday.jpg"], "nothing was added to somebody's files");
}

#[test]
fn a_path_that_cannot_be_a_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert_refused(serve(&file), &[file.to_str().unwrap()]);
    let under = file.join("data");
    assert_refused(serve(&under), &[under.to_str().unwrap()]);
}

#[test]
fn a_read_only_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(data.join("probe"), "").is_ok() {
        eprintln!("skipped: permissions mean nothing to this user (root); a path under a file is tried instead");
        return;
    }
    assert_refused(serve(&data), &[data.to_str().unwrap()]);
}

#[test]
fn a_missing_log_segment_is_noticed() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let node = Node::start(&data);
    node.call("CREATE", &json!({"key": "k", "type": "lease"}));
    node.kill();
    // Whatever the log's files are called: without all of them the node must not found itself anew.
    let mut log_files = Vec::new();
    let mut folders = vec![data.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_str().unwrap().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.contains("log") || name.contains("seg") {
                log_files.push(path);
            }
        }
    }
    assert!(!log_files.is_empty(), "no log in {:?}", names(&data));
    for file in log_files {
        fs::remove_file(file).unwrap();
    }
    assert_refused(serve(&data), &[data.to_str().unwrap()]);
}

#[test]
fn a_port_in_use_is_refused() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let dir = TempDir::new().unwrap();
    let mut command = crate::harness::tenure();
    command.arg("serve").arg("--data").arg(dir.path().join("data")).args(["--listen", &address]);
    assert_refused(command, &[&address]);
}

#[test]
fn beyond_loopback_is_refused_without_insecure() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let mut command = crate::harness::tenure();
    command.arg("serve").arg("--data").arg(&data).args(["--listen", "0.0.0.0:0"]);
    assert_refused(command, &["--insecure"]);
    assert!(!data.exists(), "refused before a file is touched");
}

/// FR-41, FR-31: fifty stops and starts without a pause.
#[test]
fn stop_and_start_without_a_pause() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    for round in 0..50 {
        let node = Node::start(&data);
        let made = node.post("CREATE", &json!({"key": format!("k{round}"), "type": "lease"}));
        assert_eq!(made.status, 200);
        if round % 2 == 0 {
            node.kill();
        } else {
            assert_eq!(node.stop().code(), Some(0));
        }
    }
    let node = Node::start(&data);
    assert_eq!(node.scan().len(), 50);
    assert!(disk_bytes(&data) < 512 << 20, "restarts do not fill the disk: {}", disk_bytes(&data));
}

/// Requests in flight are answered, new ones are not taken, exit 0; nothing acknowledged is lost.
#[test]
fn sigterm_drains() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let node = Node::start(&data);
    let addr = node.addr;
    let acknowledged: Vec<String> = thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                scope.spawn(move || {
                    let mut acknowledged = Vec::new();
                    let Ok(mut http) = crate::http::Http::connect(addr) else { return acknowledged };
                    for n in 0.. {
                        let key = format!("w{writer}-{n}");
                        match http.post("CREATE", &json!({"key": key, "type": "lease"}).to_string()) {
                            Ok(answer) if answer.status == 200 => acknowledged.push(key),
                            // A draining node may say `unavailable` or close: it never says a wrong thing.
                            Ok(answer) => {
                                assert_eq!(answer.status, 503, "{answer:?}");
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        // Not before all of them are at work.
        crate::harness::eventually("writes arrive", || (node.scan().len() > 100).then_some(()));
        let started = Instant::now();
        assert_eq!(node.stop().code(), Some(0));
        assert!(started.elapsed() < Duration::from_secs(15), "a drain has an end: {:?}", started.elapsed());
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let node = Node::start(&data);
    let kept: std::collections::BTreeSet<String> =
        node.scan().into_iter().map(|key| key["key"].as_str().unwrap().to_owned()).collect();
    let lost: Vec<&String> = acknowledged.iter().filter(|key| !kept.contains(*key)).collect();
    assert!(lost.is_empty(), "{} acknowledged, lost: {lost:?}", acknowledged.len());
}
