//! A data directory that the first landed version left behind is opened and goes on.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::codec::{self, Kind};
use crate::config::Config;
use crate::counter::{Command, Counter};
use crate::entry;
use crate::log::record::{self, Place, RecordKind};
use crate::log::segment;
use crate::machine::Stamp;
use crate::persisted::old::{EntryV1, MembershipV1, PayloadV1};
use crate::persisted::{LogIdV1, LogStateV1, SegmentHeaderV1, VoteV1};
use crate::sealed;

const SEGMENT_BYTES: usize = 256 * 1024;

/// The first segment of a single node that founded itself and added 42, as version 1 wrote it.
fn segment_of_version_1() -> Vec<u8> {
    let header = SegmentHeaderV1 { sequence: 1, previous_end: 0, group: 1, state: LogStateV1::default() };
    let mut bytes = segment::encode_header(&header).unwrap();
    let vote = VoteV1 { term: 1, node: Some(1), committed: true };
    let membership = MembershipV1 { configs: vec![vec![1]], nodes: vec![(1, "old:13378".to_owned(), String::new())] };
    let add = entry::encode_command::<Counter>(&Command::Add(42)).unwrap();
    let batch = entry::encode(Stamp(1_700_000_000_500), 1_700_000_000_500, &[add]).unwrap();
    let payloads = [PayloadV1::Membership(membership), PayloadV1::Blank, PayloadV1::Batch(batch)];
    let vote = codec::encode(Kind::Vote, 1, &vote).unwrap();
    let mut records = vec![(RecordKind::Vote, 0, vote)];
    for (index, payload) in (0_u64..).zip(payloads) {
        let (term, node) = if index == 0 { (0, 0) } else { (1, 1) };
        let entry = EntryV1 { id: LogIdV1 { term, node, index }, payload };
        records.push((RecordKind::Append, index, codec::encode(Kind::Entry, 1, &entry).unwrap()));
    }
    for (group, (kind, index, payload)) in (1..).zip(records) {
        let place = Place { sequence: 1, offset: bytes.len() as u64 };
        record::put(&mut bytes, place, kind, group, true, index, &payload);
    }
    bytes.resize(SEGMENT_BYTES, 0);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_the_first_version_is_opened_and_its_member_gets_its_incarnation() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["log", "snapshots"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("log").join(segment::file_name(1)), segment_of_version_1()).unwrap();
    fs::write(dir.path().join("founded"), b"").unwrap();
    let identity = ([0xAB_u8; 16], 1_u64, 77_u64, 1_700_000_000_000_u64);
    let envelope = codec::encode(Kind::Identity, 1, &identity).unwrap();
    sealed::write(&dir.path().join("identity"), &envelope).unwrap();

    let mut config = Config::single(dir.path());
    config.segment_bytes = SEGMENT_BYTES as u64;
    config.member.client = "new:13378".to_owned();
    for sum in [43, 44] {
        let cluster = Cluster::<Counter>::open(config.clone(), Arc::new(|_| {})).await.unwrap();
        assert_eq!(cluster.cluster_id(), "ab".repeat(16));
        assert_eq!(cluster.submit(Command::Add(1)).await.unwrap().reply, sum);
        let [(1, member)] = &cluster.status().members[..] else { panic!("{:?}", cluster.status().members) };
        assert_eq!((member.client.as_str(), member.incarnation), ("new:13378", 77));
        cluster.shutdown().await;
    }
}
