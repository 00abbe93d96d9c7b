//! What a node is told by whoever starts it: the TOML file, the command line (the environment's values go through the same
//! parsers), and what `run` and its guard say to each other.
//!
//! Settings are checked only where that looks no name up and opens no file but the secret's.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

use tempfile::NamedTempFile;
use tenure::cli;
use tenure::cli::run::guard::frame::{Ended, Frame, LENGTH};
use tenure::cli::run::times::Limits;
use tenure::config::Settings;

use crate::mutate::Form;
use crate::{Heap, KIB, MIB, Sample, Target, Verdict};

/// The file.
pub const TOML: Target = Target {
    name: "config-toml",
    read: toml,
    samples: toml_samples,
    form: Form::Text,
    mend: None,
    // A token of one byte is a parser's event and a node of its tree.
    heap: Heap { per_byte: 512, besides: 256 * KIB },
    least: 1_000,
};

/// Arguments, each ended by a zero byte, in any encoding.
pub const ARGV: Target = Target {
    name: "command-line",
    read: argv,
    samples: argv_samples,
    form: Form::Text,
    mend: None,
    // All commands and their help are built for each reading; an error shows the argument, and what was meant.
    heap: Heap { per_byte: 512, besides: 8 * MIB },
    least: 100,
};

/// A frame between `run` and its guard.
pub const GUARD: Target = Target {
    name: "guard-frame",
    read: guard,
    samples: guard_samples,
    form: Form::Binary,
    mend: None,
    heap: Heap { per_byte: 0, besides: 4 * KIB },
    least: 2_000,
};

thread_local! {
    static SECRET: NamedTempFile = {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(&[7; 32]).unwrap();
        file
    };
}

/// Is looked up nowhere.
fn is_literal(address: Option<&String>) -> bool {
    address.is_none_or(|address| address.parse::<std::net::SocketAddr>().is_ok())
}

fn checked(mut settings: Settings) -> bool {
    if !is_literal(settings.listen.as_ref()) || !is_literal(settings.peer_listen.as_ref()) {
        return true;
    }
    if settings.cluster_secret_file.is_some() {
        settings.cluster_secret_file = Some(SECRET.with(|file| file.path().to_owned()));
    }
    match settings.check() {
        Ok(config) => {
            assert!(config.node_id != Some(0) && (1..=1_000_000).contains(&config.connections_max));
            assert!((100..=60_000).contains(&config.request_timeout.as_millis()));
            true
        }
        Err(error) => {
            assert!(!format!("{error:#}").is_empty());
            false
        }
    }
}

fn toml(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Verdict::Refused };
    match Settings::parse(text) {
        Ok(settings) => Verdict::of(checked(settings)),
        Err(error) => {
            assert!(error.to_string().starts_with("line "), "{error}");
            Verdict::Refused
        }
    }
}

fn toml_samples() -> Vec<Sample> {
    let all = "# a node of three\nlisten = \"127.0.0.1:13378\"\nadvertise = \"a:13378\"\ndata = \"/var/lib/tenure\"\n\
        node_id = 1\npeers = \"1=127.0.0.1:7001,2=b:7002,3=[::1]:7003\"\npeer_listen = \"127.0.0.1:7001\"\n\
        peer_advertise = \"a:7001\"\ncluster_secret_file = 'secret'\nbootstrap_majority = false\n\
        request_timeout = \"1s 500ms\"\nelection_timeout = \"750ms\"\nconnections_max = 16_384\ninsecure = true\n";
    vec![
        ("three", all.into()),
        ("empty", Vec::new()),
        ("one", b"data = \"\"\"x\"\"\"\nrequest_timeout = \"2s\"\n".to_vec()),
    ]
}

fn argv(bytes: &[u8]) -> Verdict {
    let arguments = bytes.split(|byte| *byte == 0).map(|argument| OsString::from_vec(argument.to_vec()));
    match cli::read(arguments.take(256).collect()) {
        Some(Some(settings)) => Verdict::of(checked(settings)),
        Some(None) => Verdict::Accepted,
        None => Verdict::Refused,
    }
}

fn argv_samples() -> Vec<Sample> {
    let line = |line: &str| line.replace(' ', "\0").into_bytes();
    vec![
        (
            "serve",
            line(
                "tenure serve --listen 127.0.0.1:0 --data d --node-id 1 --peers 1=127.0.0.1:1,2=b:2,3=c:3 --cluster-secret-file s --insecure",
            ),
        ),
        ("run", line("tenure -uri tenure://a:1,b:2 run --key k --ttl 30s -- sleep 1")),
        ("raw", line("tenure CREATE {\"key\":\"k\",\"type\":\"lease\"} --json")),
        ("acquire", line("tenure --uri=tenure://a acquire k --ttl 1m")),
        ("bench", line("tenure bench")),
        ("replace", line("tenure cluster replace 3")),
    ]
}

fn guard(bytes: &[u8]) -> Verdict {
    let Ok(bytes) = <&[u8; LENGTH]>::try_from(bytes) else { return Verdict::Refused };
    let Ok(frame) = Frame::decode(bytes) else { return Verdict::Refused };
    assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    if let Frame::Ended { ended, .. } = frame {
        let _ = ended.code();
    }
    Verdict::Accepted
}

fn guard_samples() -> Vec<Sample> {
    let limits = Limits { term_at_ms: 1 << 40, kill_at_ms: (1 << 40) + 5_000 };
    [
        ("start", Frame::Start { limits, grace_ms: 7 }),
        ("extend", Frame::Extend(limits)),
        ("end", Frame::End),
        ("started", Frame::Started { pid: 4_000_000 }),
        ("refused", Frame::Refused { errno: 11 }),
        ("stopped", Frame::Stopped { asked: true }),
        ("too-late", Frame::TooLate),
        ("exited", Frame::Ended { ended: Ended::Exited(255), unrenewed: false }),
        ("signalled", Frame::Ended { ended: Ended::Signalled(64), unrenewed: true }),
    ]
    .into_iter()
    .map(|(name, frame)| (name, frame.encode().to_vec()))
    .collect()
}
