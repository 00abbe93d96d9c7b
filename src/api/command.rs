//! `POST /v1/{COMMAND}`: from the request to the cluster and back, with the witness in the headers.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Response, header};
use axum::response::IntoResponse;
use tenure_cluster::{Applied, Cluster, NeedsTick, ReadAt, ReadError, Seen, Witness};

use super::convert::{self, Kind, Query};
use super::patience::Patience;
use super::problem::{Code, Problem};
use super::socket::Peer;
use super::{Api, body};
use crate::keyspace::{KeyTtl, Keyspace, PoolUuid, Reply};

const POSITION: HeaderName = HeaderName::from_static("tenure-position");
const CLOCK: HeaderName = HeaderName::from_static("tenure-clock");
const TERM: HeaderName = HeaderName::from_static("tenure-term");
const CLUSTER: HeaderName = HeaderName::from_static("tenure-cluster");
const AGE_MS: HeaderName = HeaderName::from_static("tenure-age-ms");

/// The name in a command's path.
pub fn name(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/").filter(|name| !name.contains('/'))
}

/// The answer to a name that is no command.
pub fn unknown(name: &str) -> Problem {
    let upper = name.to_ascii_uppercase();
    let operation = convert::OPERATIONS.into_iter().find(|known| *known == upper);
    let detail = match operation {
        Some("ACQUIRE") => "ACQUIRE is an operation: POST /v1/OP {\"key\":\"…\",\"operation\":\"ACQUIRE\",\
             \"args\":{\"owner\":\"…\",\"token\":\"…\",\"ttl_ms\":30000}}"
            .to_owned(),
        Some(operation) => format!(
            "{operation} is an operation: POST /v1/OP {{\"key\":\"…\",\"operation\":\"{operation}\",\"args\":{{…}}}}"
        ),
        None if Kind::named(&upper).is_some() => format!("commands are upper case: POST /v1/{upper}"),
        None => format!("no such command; known: {}", Kind::names()),
    };
    Problem::new(Code::NotFound, detail)
}

/// The handler.
pub async fn command(State(api): State<Api>, request: Request) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let name = name(&path).unwrap_or_default();
    let Some(kind) = Kind::named(name) else { return unknown(name).into_response() };
    let (label, answered) = answer(&api, kind, name, request).await;
    match answered {
        Ok(Answered { body, witness, age_ms }) => {
            api.shared.metrics.command(label, body.outcome);
            let mut response = Response::new(Body::from(body.json));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            api.add_witness(&mut response, witness, age_ms);
            response
        }
        Err(Failed { mut problem, witness }) => {
            if problem.code == Code::Unavailable {
                problem.leader = api.leader_elsewhere();
            }
            api.shared.metrics.command(label, problem.code.as_str());
            let mut response = problem.into_response();
            if let Some(witness) = witness {
                api.add_witness(&mut response, witness, None);
            }
            response
        }
    }
}

pub(super) struct Answered {
    body: convert::Body,
    witness: Witness,
    /// Of a stale read.
    age_ms: Option<u64>,
}

/// An error; with a witness if the command was applied or read.
pub(super) struct Failed {
    problem: Box<Problem>,
    witness: Option<Witness>,
}

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), witness: None }
    }
}

/// What to count the command as, and its answer.
async fn answer(api: &Api, kind: Kind, name: &str, request: Request) -> (&'static str, Result<Answered, Failed>) {
    let (mut parts, body) = request.into_parts();
    let peer = parts.extensions.remove::<Peer>();
    let parsed = async {
        let stale = stale(parts.uri.query())?;
        let patience = Patience::of(&parts.headers, Instant::now())?;
        body::require_json(&parts.headers)?;
        let bytes = body::read(body, api.shared.body_timeout).await?;
        Ok::<_, Problem>((stale, patience, convert::request(kind, &bytes, drawn(kind)?)?))
    };
    let (stale, patience, request) = match parsed.await {
        Ok(parsed) => parsed,
        Err(problem) => return (kind.name(), Err(problem.into())),
    };
    let label = request.name();
    let answered = match request {
        convert::Request::Write(_) | convert::Request::Wait { .. } if stale => Err(stale_write(name).into()),
        convert::Request::Wait { ask, wait_ms } => api.wait(ask, wait_ms, patience, peer).await,
        convert::Request::Write(command) => api.write(command, patience).await,
        convert::Request::Read(query) => api.read(query, Reads { cluster: &api.shared.cluster, stale, patience }).await,
    };
    (label, answered)
}

/// A random number for the pools that a command of this kind may make.
fn drawn(kind: Kind) -> Result<PoolUuid, Problem> {
    let mut bytes = [0; 16];
    if matches!(kind, Kind::Create | Kind::Batch) {
        let internal = |error| Problem::new(Code::Internal, format!("the system gives no random number: {error}"));
        getrandom::fill(&mut bytes).map_err(internal)?;
    }
    // As RFC 9562 marks a random one.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(PoolUuid(bytes))
}

/// `?consistency=stale`; any other parameter is refused by name.
fn stale(query: Option<&str>) -> Result<bool, Problem> {
    let mut stale = None;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let wrong = |detail: String| {
            let field = Some(name.to_owned());
            Err(Problem { field, ..Problem::new(Code::InvalidArgument, detail) })
        };
        if name != "consistency" {
            return wrong(format!("{name} is not a query parameter here; known: consistency"));
        }
        let value = match value {
            "stale" => true,
            "linearizable" => false,
            _ => return wrong("consistency must be linearizable (the default) or stale".to_owned()),
        };
        if stale.replace(value).is_some() {
            return wrong("consistency is given more than once".to_owned());
        }
    }
    Ok(stale.unwrap_or(false))
}

fn stale_write(name: &str) -> Problem {
    let detail = format!("consistency=stale is for reads; this {name} goes through the log");
    Problem { field: Some("consistency".to_owned()), ..Problem::new(Code::InvalidArgument, detail) }
}

impl Api {
    async fn write(&self, command: crate::keyspace::Command, patience: Patience) -> Result<Answered, Failed> {
        let now = Instant::now();
        self.shared.pace.admit_all(&command, now)?;
        let applied = self.shared.cluster.submit_within(command, patience.left(now)).await.map_err(Problem::from)?;
        self.answered(&applied)
    }

    /// The answer to a command that was applied.
    pub(super) fn answered(&self, applied: &Applied<Reply>) -> Result<Answered, Failed> {
        let witness = applied.witness;
        self.shared.metrics.reply(&applied.reply);
        match convert::reply(&applied.reply, witness.clock) {
            Ok(body) => Ok(Answered { body: body.map_err(unwritable)?, witness, age_ms: None }),
            Err(refusal) => Err(Failed { problem: Box::new(refusal.into()), witness: Some(witness) }),
        }
    }

    async fn read(&self, query: Query, reads: Reads<'_>) -> Result<Answered, Failed> {
        match query {
            Query::Held { key, token } => {
                reads.op(|machine, at| Ok(machine.held(&key, token, at)?.map(Reply::from))).await
            }
            Query::Check { key, fence } => {
                reads.op(|machine, at| Ok(machine.check(&key, fence, at)?.map(Reply::from))).await
            }
            Query::Holders { key, which } => {
                let seen = reads.see(|machine, at| machine.holders(&key, &which, at)).await.map_err(Problem::from)?;
                match &seen.value {
                    Ok(page) => reads.answered(&seen, convert::holders(page, seen.witness.clock)),
                    Err(refusal) => Err(Failed { problem: Box::new(refusal.into()), witness: Some(seen.witness) }),
                }
            }
            Query::Get(key) => {
                let seen = reads.see(|machine, at| machine.get(&key, at)).await.map_err(Problem::from)?;
                let body = convert::view(seen.value.as_ref(), seen.witness.clock);
                reads.answered(&seen, body)
            }
            Query::Scan { prefix, cursor, limit } => {
                let seen = reads.see(|machine, at| machine.scan(&prefix, cursor.as_deref(), limit, at)).await;
                let seen = seen.map_err(Problem::from)?;
                let body = convert::page(&seen.value, seen.witness.clock);
                reads.answered(&seen, body)
            }
            Query::Exists(key) => {
                let seen = reads.see(|machine, at| machine.exists(&key, at)).await.map_err(Problem::from)?;
                reads.answered(&seen, convert::scalar(&seen.value))
            }
            Query::Type(key) => {
                let seen = reads.see(|machine, at| machine.key_type(&key, at)).await.map_err(Problem::from)?;
                reads.answered(&seen, convert::scalar(&seen.value.map(convert::type_name)))
            }
            Query::Ttl(key) => {
                let seen = reads.see(|machine, at| machine.key_ttl(&key, at)).await.map_err(Problem::from)?;
                let ttl_ms = match seen.value {
                    KeyTtl::NoKey => -2,
                    KeyTtl::Endless => -1,
                    KeyTtl::Remaining(ms) => i64::try_from(ms).unwrap_or(i64::MAX),
                };
                reads.answered(&seen, convert::scalar(&ttl_ms))
            }
        }
    }

    /// Where clients find the leader, if this node knows of another one.
    pub(super) fn leader_elsewhere(&self) -> Option<String> {
        let status = self.shared.cluster.status();
        let leader = status.leader.filter(|leader| *leader != status.node_id)?;
        let (_, member) = status.members.into_iter().find(|(id, _)| *id == leader)?;
        Some(member.client).filter(|address| !address.is_empty())
    }

    fn add_witness(&self, response: &mut Response<Body>, witness: Witness, age_ms: Option<u64>) {
        let headers = response.headers_mut();
        if let Ok(position) = HeaderValue::try_from(witness.position.to_string()) {
            headers.insert(POSITION, position);
        }
        headers.insert(CLOCK, HeaderValue::from(witness.clock.0));
        headers.insert(TERM, HeaderValue::from(witness.term));
        headers.insert(CLUSTER, self.shared.cluster_id.clone());
        if let Some(age_ms) = age_ms {
            headers.insert(AGE_MS, HeaderValue::from(age_ms));
        }
    }
}

/// Reads of one consistency.
struct Reads<'a> {
    cluster: &'a Cluster<Keyspace>,
    stale: bool,
    patience: Patience,
}

impl Reads<'_> {
    async fn see<R: Send>(
        &self,
        read: impl Fn(&Keyspace, ReadAt) -> Result<R, NeedsTick> + Send + Sync,
    ) -> Result<Seen<R>, ReadError> {
        if !self.stale {
            return self.cluster.read_within(read, self.patience.left(Instant::now())).await;
        }
        let Seen { value, witness, age_ms } = self.cluster.read_stale(&read);
        match value {
            Ok(value) => Ok(Seen { value, witness, age_ms }),
            // A stale read is judged by the last applied stamp alone: nothing lies between.
            Err(NeedsTick) => Err(ReadError::Unavailable("the node's clock ran ahead of its state".to_owned())),
        }
    }

    async fn op(
        &self,
        read: impl Fn(&Keyspace, ReadAt) -> Result<Result<Reply, crate::keyspace::Refusal>, NeedsTick> + Send + Sync,
    ) -> Result<Answered, Failed> {
        let seen = self.see(read).await.map_err(Problem::from)?;
        let failed = |problem: Problem| Failed { problem: Box::new(problem), witness: Some(seen.witness) };
        match &seen.value {
            Ok(reply) => match convert::reply(reply, seen.witness.clock) {
                Ok(body) => self.answered(&seen, body),
                Err(refused) => Err(failed(refused.into())),
            },
            Err(refusal) => Err(failed(refusal.into())),
        }
    }

    fn answered<R>(&self, seen: &Seen<R>, body: Result<convert::Body, serde_json::Error>) -> Result<Answered, Failed> {
        let age_ms = self.stale.then_some(seen.age_ms);
        Ok(Answered { body: body.map_err(unwritable)?, witness: seen.witness, age_ms })
    }
}

fn unwritable(error: serde_json::Error) -> Failed {
    Problem::new(Code::Internal, format!("the answer could not be written: {error}")).into()
}
