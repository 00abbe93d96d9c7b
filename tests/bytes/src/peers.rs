//! What nodes read of each other: greetings, authentic frames, snapshots on their way, requests and answers.
//!
//! Frames are sealed with a key that never changes; mutants are mostly sealed again, as by a peer that is mad and knows
//! the secret.

use bytes::Bytes;
use tenure_cluster::codec::{self, Kind};
use tenure_cluster::hello::{HelloV1, PurposeV1};
use tenure_cluster::peer::{
    AdmitV1, AdmittedV1, AppendV1, AppendedV1, ForwardedV1, FoundV1, LeaderGoneV1, OrderedV1, PeerAnswerV1,
    PeerRequestV1, ReadIndexV1, ReplacedV1, TransferAnswerV1, TransferV1, VoteAnswerV1, VoteRequestV1,
};
use tenure_cluster::persisted::{EntryV2, LogIdV1, MemberV2, MembershipV2, PayloadV2, VoteV1};
use tenure_cluster::reading;
use tenure_cluster::tcp::{OfferV2, SnapshotHeadV2};
use tokio::runtime::Runtime;

use crate::mutate::Form;
use crate::{Heap, KIB, MIB, Sample, Target, Verdict, survives};

/// The first words on a connection, nonce and hello.
pub const GREETING: Target = Target {
    name: "peer-greeting",
    read: greeting,
    samples: greeting_samples,
    form: Form::Binary,
    mend: None,
    // Room for a text is made by its announced length, of which a short value may claim 32 KiB in all.
    heap: Heap { per_byte: 8, besides: 34 * KIB },
    least: 2_000,
};

/// A stream of authentic frames, and the envelopes in them.
pub const FRAMES: Target = Target {
    name: "peer-frames",
    read: frames,
    samples: frames_samples,
    form: Form::Binary,
    mend: Some(reseal),
    // Per byte as DECODED; a frame of one byte (and its 20 of frame) is a message in a list.
    heap: Heap { per_byte: 2 * DECODED, besides: 2 * MIB },
    least: 1_000,
};

/// The frames of one snapshot: 8 bytes of length, then the stream.
pub const SNAPSHOT: Target = Target {
    name: "peer-snapshot",
    read: snapshot,
    samples: snapshot_samples,
    form: Form::Binary,
    mend: Some(reseal_snapshot),
    // What came, what waits, what was taken, each in buffers that double.
    heap: Heap { per_byte: 8, besides: 512 * KIB },
    least: 1_000,
};

/// An envelope with a request.
pub const REQUEST: Target = Target {
    name: "peer-request",
    read: |bytes| survives(bytes, reading::request),
    samples: request_samples,
    form: Form::Binary,
    mend: None,
    heap: ENVELOPE,
    least: 2_000,
};

/// An envelope with an answer.
pub const ANSWER: Target = Target {
    name: "peer-answer",
    read: |bytes| survives(bytes, reading::answer),
    samples: answer_samples,
    form: Form::Binary,
    mend: None,
    heap: ENVELOPE,
    least: 2_000,
};

/// An envelope with a snapshot's head.
pub const OFFER: Target = Target {
    name: "peer-offer",
    read: |bytes| survives(bytes, reading::offer),
    samples: offer_samples,
    form: Form::Binary,
    mend: None,
    heap: ENVELOPE,
    least: 2_000,
};

/// An entry or member of a few bytes is a value of about 100, in a vector that doubles, twice over (twin and plain).
const DECODED: usize = 256;
/// serde reserves up to 1 MiB for a list by its announced length, before it reads the elements: for each list that is
/// open, and there are at most two (an append's entries, a membership's voters), and once more for what is being moved.
const ENVELOPE: Heap = Heap { per_byte: DECODED, besides: 4 * MIB };

fn hello() -> HelloV1 {
    HelloV1 {
        protocol_min: 1,
        protocol_max: 1,
        group: 0,
        cluster: Some([7; 16]),
        node: 2,
        incarnation: 0x1234_5678_9abc_def0,
        empty: false,
        admitted_at: 300,
        client: "a:13378".into(),
        peer: "a:13379".into(),
        feature_level: 1,
        build: "0.1.0".into(),
        purpose: PurposeV1::Requests,
    }
}

fn greeting(bytes: &[u8]) -> Verdict {
    let Some(hello) = reading::greeting(bytes) else { return Verdict::Refused };
    assert_eq!(reading::greeting(&greeted(&hello)), Some(hello));
    Verdict::Accepted
}

fn greeted(hello: &HelloV1) -> Vec<u8> {
    let mut bytes = b"tenure-p".to_vec();
    bytes.extend_from_slice(&[0x5a; 32]);
    codec::encode_into(Kind::Hello, 1, hello, &mut bytes).unwrap();
    bytes
}

fn greeting_samples() -> Vec<Sample> {
    let new = HelloV1 { cluster: None, empty: true, purpose: PurposeV1::Snapshot, ..hello() };
    vec![("member", greeted(&hello())), ("new", greeted(&new))]
}

thread_local! {
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
}

fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn frames(bytes: &[u8]) -> Verdict {
    let Some(said) = on_runtime(reading::frames(bytes)) else { return Verdict::Refused };
    for (kind, body) in said {
        match kind {
            1 => drop(survives(&body, reading::request)),
            2 => drop(survives(&body, reading::answer)),
            5 => assert!(body.len() <= 1024 && !String::from_utf8(body).unwrap().contains(char::is_control)),
            6 => drop(survives(&body, reading::offer)),
            _ => {}
        }
    }
    Verdict::Accepted
}

fn reseal(bytes: &mut Vec<u8>) {
    *bytes = on_runtime(reading::resealed(bytes));
}

/// Bodies by their kind (see the transport's messages).
fn numbered(kind: u8, number: u64, envelope: &[u8]) -> Vec<u8> {
    [&[kind], &number.to_le_bytes()[..], envelope].concat()
}

fn frames_samples() -> Vec<Sample> {
    let requests: Vec<Vec<u8>> =
        request_samples().iter().enumerate().map(|(n, (_, envelope))| numbered(1, n as u64, envelope)).collect();
    let mut answers = vec![vec![4], vec![3]];
    answers.extend(answer_samples().iter().enumerate().map(|(n, (_, envelope))| numbered(2, n as u64, envelope)));
    let refused = [b"\x05" as &[u8], "another cluster".as_bytes()].concat();
    let stream = |bodies: &[Vec<u8>]| on_runtime(reading::sealed(bodies));
    vec![("requests", stream(&requests)), ("answers", stream(&answers)), ("refused", stream(&[vec![3], refused]))]
}

fn snapshot(bytes: &[u8]) -> Verdict {
    let Some((length, stream)) = bytes.split_first_chunk::<8>() else { return Verdict::Refused };
    let length = u64::from_le_bytes(*length);
    let Some(whole) = on_runtime(reading::snapshot(stream, length)) else { return Verdict::Refused };
    assert_eq!(whole.len() as u64, length, "whoever sees the end sees no short one");
    Verdict::Accepted
}

fn reseal_snapshot(bytes: &mut Vec<u8>) {
    if bytes.len() > 8 {
        let stream = on_runtime(reading::resealed(&bytes[8..]));
        bytes.splice(8.., stream);
    }
}

fn snapshot_samples() -> Vec<Sample> {
    let state: Vec<u8> = (0..1_000_u32).flat_map(u32::to_le_bytes).collect();
    let end = |state: &[u8]| {
        [b"\x08" as &[u8], &(state.len() as u64).to_le_bytes(), &crc32c::crc32c(state).to_le_bytes()].concat()
    };
    let sample = |state: &[u8], piece: usize| {
        let mut bodies: Vec<Vec<u8>> = state.chunks(piece).map(|piece| [b"\x07", piece].concat()).collect();
        bodies.insert(bodies.len() / 2, vec![3]);
        bodies.push(end(state));
        [&(state.len() as u64).to_le_bytes()[..], &on_runtime(reading::sealed(&bodies))].concat()
    };
    vec![("pieces", sample(&state, 700)), ("one", sample(b"x", 1)), ("empty", sample(b"", 1))]
}

fn id(index: u64) -> LogIdV1 {
    LogIdV1 { term: 3, node: 2, index }
}

fn vote() -> VoteV1 {
    VoteV1 { term: 3, node: Some(2), committed: true }
}

/// Two members, in a change of voters.
pub fn membership() -> MembershipV2 {
    let member =
        |client: &str, peer: &str, incarnation| MemberV2 { client: client.into(), peer: peer.into(), incarnation };
    MembershipV2 {
        configs: vec![vec![1, 2], vec![1]],
        nodes: vec![(1, member("a:1", "a:2", 77)), (2, member("b:1", "", 0))],
    }
}

fn request_samples() -> Vec<Sample> {
    let payloads =
        [PayloadV2::Blank, PayloadV2::Batch(Bytes::from_static(b"abc")), PayloadV2::Membership(membership())];
    let entries = payloads.into_iter().zip(300..).map(|(payload, index)| EntryV2 { id: id(index), payload }).collect();
    let append =
        AppendV1 { vote: vote(), previous: Some(id(299)), entries, committed: Some(id(70_000)), quorum_age_ms: 5 };
    let asked = VoteRequestV1 { vote: vote(), last: Some(id(9)), by_transfer: true };
    let forwarded = |bytes: &'static [u8]| ForwardedV1 {
        command: Bytes::from_static(bytes),
        reply_bytes: 300,
        patience_ms: 70_000,
    };
    let admit = AdmitV1 { node: 3, incarnation: u64::MAX, client: "c:1".into(), peer: "c:2".into() };
    let found = FoundV1 {
        cluster: [9; 16],
        founded_wall_ms: 1,
        incarnation: 2,
        peers: vec![(1, "a:2".into()), (2, "b:2".into())],
    };
    let gone = LeaderGoneV1 { leader: vote(), candidate: 1, last: None };
    [
        ("append", PeerRequestV1::Append(append)),
        ("vote", PeerRequestV1::Vote(asked.clone())),
        ("pre-vote", PeerRequestV1::PreVote(asked)),
        ("transfer", PeerRequestV1::Transfer(TransferV1 { from: vote(), to: 1, last: Some(id(9)) })),
        ("forward", PeerRequestV1::Forward(vec![forwarded(b"\x03\x01\x00\x00\x05"), forwarded(b"")])),
        ("read-index", PeerRequestV1::ReadIndex),
        ("tick", PeerRequestV1::Tick { term: 3, stamp_ms: u64::MAX }),
        ("leader-gone", PeerRequestV1::LeaderGone(gone)),
        ("found", PeerRequestV1::Found(found)),
        ("admit", PeerRequestV1::Admit(admit)),
        ("replace", PeerRequestV1::Replace(3)),
    ]
    .into_iter()
    .map(|(name, request)| (name, codec::encode(Kind::PeerRequest, 1, &request).unwrap()))
    .collect()
}

fn answer_samples() -> Vec<Sample> {
    let applied = OrderedV1::Applied {
        reply: Bytes::from_static(b"\x04\x01\x00\x00"),
        index: 9,
        ordinal: 1,
        clock: 1 << 40,
        term: 3,
    };
    let yes = AdmittedV1::Yes { cluster: [9; 16], founded_wall_ms: 1 << 40, at: 7 };
    let changed = TransferAnswerV1::VoteChanged { expected: vote(), actual: vote() };
    let lags = TransferAnswerV1::NotSynced { expected: Some(id(9)), actual: None };
    [
        ("appended", PeerAnswerV1::Append(AppendedV1::All)),
        ("up-to", PeerAnswerV1::Append(AppendedV1::UpTo(Some(id(300))))),
        ("outvoted", PeerAnswerV1::Append(AppendedV1::Outvoted(vote()))),
        ("vote", PeerAnswerV1::Vote(VoteAnswerV1 { vote: vote(), granted: true, last: None })),
        ("vote-changed", PeerAnswerV1::Transfer(changed)),
        ("not-synced", PeerAnswerV1::Transfer(lags)),
        ("snapshot", PeerAnswerV1::Snapshot(vote())),
        ("ordered", PeerAnswerV1::Forward(vec![applied, OrderedV1::NotOrdered, OrderedV1::Unknown])),
        ("unfit", PeerAnswerV1::Forward(vec![OrderedV1::Refused("it does not decode".into())])),
        ("read-index", PeerAnswerV1::ReadIndex(ReadIndexV1 { index: 9, term: 3, now_ms: 1 << 40 })),
        ("admitted", PeerAnswerV1::Admitted(yes)),
        ("later", PeerAnswerV1::Admitted(AdmittedV1::Later("ask again".into()))),
        ("replaced", PeerAnswerV1::Replaced(ReplacedV1::Done)),
        ("not-leader", PeerAnswerV1::NotLeader(Some(1))),
        ("refused", PeerAnswerV1::Refused("it stops".into())),
    ]
    .into_iter()
    .map(|(name, answer)| (name, codec::encode(Kind::PeerAnswer, 1, &answer).unwrap()))
    .collect()
}

fn offer_samples() -> Vec<Sample> {
    let head = SnapshotHeadV2 {
        last: id(900),
        ordinal: 4,
        membership_at: Some(id(1)),
        membership: membership(),
        stamp_ms: 70_000,
        feature_level: 1,
        format_version: 1,
    };
    let offer = OfferV2 { vote: vote(), head, bytes: 5 };
    vec![("offer", offer.clone().encode(2).unwrap()), ("old-offer", offer.encode(1).unwrap())]
}
