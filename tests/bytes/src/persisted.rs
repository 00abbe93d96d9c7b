//! What else is kept: an entry's content, the identity file's envelope, and a data directory behind its identity file.

use bytes::Bytes;
use tempfile::TempDir;
use tenure::keyspace::{Command, Keyspace};
use tenure_cluster::codec::{self, Kind};
use tenure_cluster::entry::{self, Content, ControlV1};
use tenure_cluster::identity::{Belonging, DataDir, Founding, Identity};
use tenure_cluster::{OpenError, Stamp, reading};

use crate::mutate::Form;
use crate::snapshots::{mend_sealed, sealed};
use crate::{Heap, KIB, MIB, Sample, Target, Verdict, survives};

/// Commands under a stamp, or an order of the cluster's own.
pub const BATCH: Target = Target {
    name: "entry-content",
    read: content,
    samples: content_samples,
    form: Form::Binary,
    mend: None,
    // A command of no bytes is a slice of 16 behind one byte of length, in a vector that doubles; serde reserves up to
    // 1 MiB for a list by its announced length.
    heap: Heap { per_byte: 512, besides: 4 * MIB },
    least: 2_000,
};

/// The envelope.
pub const IDENTITY: Target = Target {
    name: "identity",
    read: |bytes| survives(bytes, reading::identity),
    samples: identity_samples,
    form: Form::Binary,
    mend: None,
    heap: Heap { per_byte: 4, besides: 4 * KIB },
    least: 2_000,
};

/// The file, in a directory with all else in place.
pub const DIRECTORY: Target = Target {
    name: "identity-file",
    read: directory,
    samples: || identity_samples().into_iter().map(|(name, envelope)| (name, sealed(&envelope))).collect(),
    form: Form::Binary,
    mend: Some(mend_sealed),
    heap: Heap { per_byte: 16, besides: 64 * KIB },
    least: 100,
};

fn content(bytes: &[u8]) -> Verdict {
    match entry::content(bytes) {
        Ok(Content::Batch(batch)) => {
            let commands: Vec<Bytes> = batch.commands.iter().map(|command| Bytes::copy_from_slice(command)).collect();
            let again = entry::encode(batch.stamp, batch.wall_ms, &commands).unwrap();
            assert_eq!(entry::decode(&again).unwrap(), batch);
            for command in &batch.commands {
                let _ = entry::decode_command::<Keyspace>(command);
            }
            Verdict::Accepted
        }
        Ok(Content::Control(control)) => {
            assert_eq!(entry::content(&entry::encode_control(&control).unwrap()).unwrap(), Content::Control(control));
            Verdict::Accepted
        }
        Err(_) => Verdict::Refused,
    }
}

fn content_samples() -> Vec<Sample> {
    let get = entry::encode_command::<Keyspace>(&Command::Get { key: "k".into() }).unwrap();
    let batch = |commands: &[Bytes]| entry::encode(Stamp(1 << 40), 1 << 40, commands).unwrap().to_vec();
    vec![
        ("tick", batch(&[])),
        ("two", batch(&[get.clone(), get])),
        ("control", entry::encode_control(&ControlV1::RaiseFeatureLevel(300)).unwrap().to_vec()),
    ]
}

fn identity_samples() -> Vec<Sample> {
    let belonging = Belonging { cluster: [9; 16], founded_wall_ms: 1 << 40, founder: true, admitted_at: 300 };
    let of = |several, belonging| Identity { node_id: 2, incarnation: u64::MAX, several, belonging };
    let encode = |identity: Identity| codec::encode(Kind::Identity, 2, &identity).unwrap();
    let old: ([u8; 16], u64, u64, u64) = ([9; 16], 1, 77, 1 << 40);
    vec![
        ("single", encode(of(false, Some(belonging)))),
        ("several", encode(of(true, None))),
        ("old", codec::encode(Kind::Identity, 1, &old).unwrap()),
    ]
}

fn directory(bytes: &[u8]) -> Verdict {
    let dir = TempDir::new().unwrap();
    for name in ["log", "snapshots"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    let file = dir.path().join("identity");
    std::fs::write(&file, bytes).unwrap();
    let mut random = |_: &mut [u8]| panic!("a directory with an identity is never founded anew");
    let founding = Founding { wall_ms: 1, several: false, random: &mut random };
    match DataDir::open(dir.path(), None, founding) {
        Ok(opened) => {
            assert!(!opened.is_new());
            assert!(!opened.identity().name().is_empty());
            Verdict::Accepted
        }
        Err(error) => {
            assert!(matches!(error, OpenError::Damaged { .. } | OpenError::Foreign { .. }), "{error:?}");
            assert_eq!(std::fs::read(&file).unwrap(), bytes, "a directory that is refused is not changed");
            Verdict::Refused
        }
    }
}
