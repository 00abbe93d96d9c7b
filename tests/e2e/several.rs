//! Nodes of several, as far as one process or `dev` shows them: what they are told, how they wait, and a throw-away
//! cluster of three.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Process, eventually, serve, stderr, stdout, tenure};
use crate::http::{Http, Response};
use crate::ports;

fn secret(dir: &Path) -> String {
    let path = dir.join("secret");
    std::fs::write(&path, "a secret of the tests\n").unwrap();
    path.to_str().unwrap().to_owned()
}

/// Node 1 of three of which the others are not there, on these ports.
fn one_of_three(dir: &Path, listen: SocketAddr, own: SocketAddr) -> Command {
    let mut command = tenure();
    command.arg("serve").arg("--data").arg(dir.join("data")).args(["--listen", &listen.to_string()]);
    command.args(["--node-id", "1", "--cluster-secret-file", &secret(dir)]);
    command.args(["--peers", &format!("1={own},2=127.0.0.1:1,3=127.0.0.1:2")]);
    command
}

fn get(addr: SocketAddr, path: &str) -> Response {
    eventually("the port answers", || Http::connect(addr).ok()?.send("GET", path, &[], "").ok())
}

#[test]
fn a_configuration_that_breaks_a_rule_is_refused_before_anything_is_touched() {
    let dir = TempDir::new().unwrap();
    let secret = secret(dir.path());
    let data = dir.path().join("data");
    let list = "1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3";
    let with = ["--cluster-secret-file", &secret];
    for (args, words) in [
        (vec!["--peers", list], vec!["--node-id"]),
        (vec!["--peers", list, "--node-id", "1"], vec!["cluster_secret_file", "head -c 32"]),
        (vec!["--peers", list, "--node-id", "4", with[0], with[1]], vec!["node_id is 4", "1, 2, 3"]),
        (vec!["--peers", "1=a", "--node-id", "1", with[0], with[1]], vec!["HOST:PORT"]),
        (vec!["--peer-listen", "127.0.0.1:0"], vec!["peer_listen", "--peers"]),
        (vec!["--bootstrap-majority"], vec!["bootstrap_majority", "--peers"]),
    ] {
        let output = serve(&data).args(&args).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "one line: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{args:?}: {said}");
        assert!(!data.exists());
    }
}

#[test]
fn a_peer_port_in_use_is_refused() {
    let dir = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let output = one_of_three(dir.path(), ports::free(), address).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address.to_string()) && said.contains("--peer-listen"), "{said}");
    assert!(!dir.path().join("data").exists());
}

/// Alone it founds nothing, and says so to whoever asks; told to end, it ends.
#[test]
fn a_node_that_waits_for_its_peers_lives_and_is_not_ready() {
    let dir = TempDir::new().unwrap();
    let (listen, own) = (ports::free(), ports::free());
    let mut process = Process::start(one_of_three(dir.path(), listen, own));
    assert_eq!(get(listen, "/livez").status, 200);
    let waiting = eventually("it waits for its peers", || {
        let problem = get(listen, "/readyz");
        assert_eq!(problem.status, 503);
        problem.json()["detail"].as_str().filter(|detail| detail.contains("waiting_for_peers")).map(str::to_owned)
    });
    assert!(waiting.contains("node 2 at 127.0.0.1:1") && waiting.contains("node 3 at 127.0.0.1:2"), "{waiting}");
    let status = get(listen, "/v1/status").json();
    assert_eq!((&status["ready"], &status["not_ready"]), (&json!(false), &json!("waiting_for_peers")));
    let refused = Http::connect(listen).unwrap().post("GET", r#"{"key":"k"}"#).unwrap();
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("unavailable")));
    let shown = tenure().args(["--uri", &format!("tenure://{listen}"), "status"]).output().unwrap();
    assert_eq!(shown.status.code(), Some(3), "no quorum: {}", stderr(&shown));
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
}

#[test]
fn dev_runs_odd_numbers_of_nodes() {
    for nodes in ["0", "2", "4", "7"] {
        let output = tenure().args(["dev", "--nodes", nodes, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("1, 3 or 5"), "{}", stderr(&output));
    }
}

/// Three processes; one is killed and comes back, while the others serve.
#[test]
fn dev_runs_a_command_on_a_throw_away_cluster() {
    let script = "set -e\n\
        test $(echo $TENURE_URI | tr , '\\n' | wc -l) = 3\n\
        test $(echo $TENURE_DEV_PIDS | wc -w) = 3\n\
        test \"$(echo $TENURE_DEV_PIDS | cut -d' ' -f2)\" = \"$(cat $TENURE_DEV_DIR/node-2/pid)\"\n\
        tenure status >/dev/null\n\
        tenure CREATE '{\"key\":\"k\",\"type\":\"lease\"}'\n\
        for n in 1 2 3; do\n\
          kill -9 $(cat $TENURE_DEV_DIR/node-$n/pid)\n\
          tenure EXISTS '{\"key\":\"k\"}'\n\
          $TENURE_DEV_DIR/node-$n/start >/dev/null\n\
        done\n\
        tenure --json cluster status || test $? = 1\n\
        echo $TENURE_DEV_DIR\n\
        exit 7";
    let output = tenure().args(["dev", "--nodes", "3", "--", "timeout", "60", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "the command's own code: {}\n{}", stderr(&output), stdout(&output));
    let said = stdout(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..4], ["true"; 4], "{said}");
    let status: Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!((&status["voters"], &status["quorum"]), (&json!(3), &json!(true)), "{status}");
    assert_eq!(status["nodes"].as_array().unwrap().len(), 3);
    assert!(!Path::new(lines[5]).exists(), "everything is gone when it ends");
}

/// Whoever kills `dev` leaves no node and no directory behind.
#[test]
fn a_killed_dev_takes_its_nodes_with_it() {
    let mut command = tenure();
    command.args([
        "dev",
        "--nodes",
        "3",
        "--",
        "sh",
        "-c",
        "echo dir $TENURE_DEV_DIR; echo pids $TENURE_DEV_PIDS; exec sleep 60",
    ]);
    let mut dev = Process::start(command);
    let line = |name: &str| {
        let find = |line: &str| line.strip_prefix(name).map(str::to_owned);
        dev.lines.await_line(crate::harness::SOON, find).expect("the command runs")
    };
    let (dir, pids) = (line("dir "), line("pids "));
    dev.signal(Signal::KILL);
    dev.end();
    eventually("the directory is gone", || (!Path::new(&dir).exists()).then_some(()));
    for pid in pids.split(' ') {
        eventually("the node is gone", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    }
}

/// A node that lost its directory is not let in by itself, and is by an operator's word.
#[test]
fn a_lost_directory_is_replaced() {
    let script = "set -e\n\
        tenure CREATE '{\"key\":\"k\",\"type\":\"lease\"}'\n\
        tenure cluster replace 3 && exit 3\n\
        kill -9 $(cat $TENURE_DEV_DIR/node-3/pid)\n\
        rm -r $TENURE_DEV_DIR/node-3/data\n\
        until tenure cluster replace 3; do :; done\n\
        $TENURE_DEV_DIR/node-3/start >/dev/null\n\
        until tenure status >/dev/null; do :; done\n\
        tenure EXISTS '{\"key\":\"k\"}'\n";
    let output = tenure().args(["dev", "--nodes", "3", "--", "timeout", "60", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stderr(&output), stdout(&output));
    assert!(stderr(&output).contains("nothing to replace"), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().last(), Some("true"), "{}", stdout(&output));
}

/// Nobody leads and nobody can: clients of the last node are told that nothing happened, and not that nobody knows.
#[test]
fn without_a_leader_writes_are_unavailable_and_not_in_doubt() {
    let script = "kill_leader() {\n\
          until leader=$(tenure --json status | sed -n 's/.*\"leader\":\\([0-9]\\).*/\\1/p;T;q') && test -n \"$leader\"; do :; done\n\
          kill -9 $(cat $TENURE_DEV_DIR/node-$leader/pid)\n\
        }\n\
        tenure CREATE '{\"key\":\"k\",\"type\":\"lease\"}'\n\
        kill_leader\n\
        tenure EXISTS '{\"key\":\"k\"}'\n\
        kill_leader\n\
        until tenure --json status | grep -q no_leader; do :; done\n\
        tenure acquire k --owner o & acquire=$!\n\
        tenure OP '{\"key\":\"k\",\"operation\":\"ACQUIRE\",\"args\":{\"owner\":\"o\",\"token\":\"t\"}}' & op=$!\n\
        tenure CREATE '{\"key\":\"l\",\"type\":\"lease\"}'; echo create $?\n\
        wait $acquire; echo acquire $?\n\
        wait $op; echo op $?\n";
    let output = tenure().args(["dev", "--nodes", "3", "--", "timeout", "60", "sh", "-c", script]).output().unwrap();
    let (said, why) = (stdout(&output), stderr(&output));
    assert_eq!(said.lines().collect::<Vec<_>>(), ["true", "true", "create 3", "acquire 3", "op 3"], "{why}");
}
