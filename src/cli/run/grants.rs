//! What a run holds: a grant of each of its keys, kept and ended together; or of one slot of a pool.
//!
//! One token serves all of them: the keys part them, and a run that is told to stop while it asks knows what to give back.
//! The deadline is the earliest of all; the loss of one is the loss of the run.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::json;
use tenure_client::time::own_deadline;
use tenure_client::wire::{Answer, BreakArgs, Code, Op, ReleaseArgs, RenewArgs, Token, reason};
use tenure_client::{CallError, Client, Grant, Outcome, slot};

use super::each::{Each, Within, ask_each};
use super::times::to_ms;

/// The grants of a run, at least one, in the order of its command line.
#[derive(Clone, Debug)]
pub struct Grants {
    each: Vec<Grant>,
    /// The one key is a pool: what was granted of it.
    slot: Option<Box<slot::Grant>>,
}

/// What the answers to a renewal come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// All are held until then, by the own clock.
    Held {
        /// The earliest own deadline.
        deadline_ms: u64,
    },
    /// One is not held any more.
    Lost {
        /// Which.
        key: String,
        /// One of [`reason`].
        reason: String,
        /// The operator's text.
        detail: Option<String>,
    },
    /// The answer is not to be understood; nothing is known.
    Odd(String),
}

impl Grants {
    /// Of these; `None` of none.
    pub fn new(grants: Vec<Grant>) -> Option<Self> {
        (!grants.is_empty()).then_some(Self { each: grants, slot: None })
    }

    /// Of one key.
    pub fn one(grant: Grant) -> Self {
        Self { each: vec![grant], slot: None }
    }

    /// Of a slot: the key is the pool.
    pub fn of_slot(slot: slot::Grant) -> Self {
        let grant = Grant {
            key: slot.key.clone(),
            token: slot.token.clone(),
            fence: slot.slot.fence,
            ttl_ms: slot.ttl_ms,
            deadline: slot.deadline,
        };
        Self { each: vec![grant], slot: Some(Box::new(slot)) }
    }

    /// Each of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Grant> {
        self.each.iter()
    }

    /// Whether it is a slot of a pool, in which others hold too.
    pub fn is_slot(&self) -> bool {
        self.slot.is_some()
    }

    /// For people: the fence, or each key's; of a slot also which.
    pub fn fences(&self) -> String {
        if let Some(slot) = self.slot.as_ref().map(|grant| &grant.slot) {
            let what = if slot.identity.is_some() { "id" } else { "slot" };
            return format!("{what} {}, fence {}", slot.id, slot.fence);
        }
        match &self.each[..] {
            [grant] => format!("fence {}", grant.fence),
            several => {
                let each: Vec<String> = several.iter().map(|grant| format!("{} {}", grant.key, grant.fence)).collect();
                format!("fences: {}", each.join(", "))
            }
        }
    }

    /// What the job is told of them.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let told = |grant: &Grant| {
            let mut told = json!({"key": grant.key, "token": grant.token.expose(), "fence": grant.fence});
            if let Some(slot) = &self.slot {
                told["id"] = slot.slot.id.into();
            }
            told
        };
        let all: Vec<_> = self.each.iter().map(told).collect();
        let mut environment = vec![("TENURE_GRANTS", json!(all).to_string().into())];
        if let Some(slot) = self.slot.as_ref().map(|grant| &grant.slot) {
            let name = if slot.identity.is_some() { "TENURE_MACHINE_ID" } else { "TENURE_SLOT" };
            environment.push((name, slot.id.to_string().into()));
        }
        if let Some(first) = self.each.first() {
            environment.push(("TENURE_KEY", first.key.clone().into()));
            environment.push(("TENURE_TOKEN", first.token.expose().into()));
            environment.push(("TENURE_FENCE", first.fence.to_string().into()));
        }
        environment
    }

    /// RENEW of all.
    pub async fn renew(&self, client: &Client, within: Within) -> Result<Renewed, CallError> {
        if let Some(slot) = &self.slot {
            return Ok(of_slot(&slot.key, slot.renew(client, within.call, within.one_try).await));
        }
        let renew = |grant: &Grant| {
            let ttl_ms = i64::try_from(grant.ttl_ms).ok();
            Op::new(grant.key.clone(), RenewArgs { token: grant.token.clone(), ttl_ms, fence: Some(grant.fence) })
        };
        let ops: Vec<_> = self.each.iter().map(renew).collect();
        self.judged(ask_each(client, &ops, within).await?)
    }

    fn judged(&self, each: Each) -> Result<Renewed, CallError> {
        let mut deadline_ms = u64::MAX;
        for (grant, answer) in self.each.iter().zip(each.answers) {
            match answer {
                Ok(answer) if answer.is_true() => match answer.ttl_ms() {
                    Some(ttl_ms) => deadline_ms = deadline_ms.min(to_ms(own_deadline(each.sent, ttl_ms))),
                    None => return Ok(Renewed::Odd(format!("{} renewed without saying ttl_ms", each.endpoint))),
                },
                Ok(answer) => return Ok(lost(&grant.key, &answer)),
                // An OP needs its key: the grant went with it. How to make one again is no news to a holder.
                Err(problem) if problem.is(Code::NoSuchKey) || problem.is(Code::WrongType) => {
                    let detail = problem.is(Code::WrongType).then_some(problem.detail);
                    let reason = reason::DELETED.to_owned();
                    return Ok(Renewed::Lost { key: grant.key.clone(), reason, detail });
                }
                Err(problem) => return Err(CallError::Refused(problem)),
            }
        }
        Ok(Renewed::Held { deadline_ms })
    }

    /// RELEASE of all. True if each ended by it, or by an earlier copy.
    pub async fn release(&self, client: &Client, timeout: Duration) -> Result<bool, CallError> {
        let release = |grant: &Grant| {
            Op::new(grant.key.clone(), ReleaseArgs { token: grant.token.clone(), fence: Some(grant.fence) })
        };
        let ops: Vec<_> = self.each.iter().map(release).collect();
        Ok(all_ended(&ask_each(client, &ops, Within::of(client, timeout)).await?))
    }

    /// BREAK of all, by their fences: an end that opens no minimum hold. True as for RELEASE.
    pub async fn annul(&self, client: &Client, why: &str, timeout: Duration) -> Result<bool, CallError> {
        let annul = |grant: &Grant| annul(grant.key.clone(), grant.fence, why);
        let ops: Vec<_> = self.each.iter().map(annul).collect();
        Ok(all_ended(&ask_each(client, &ops, Within::of(client, timeout)).await?))
    }
}

/// What a slot's renewal comes to.
fn of_slot(key: &str, outcome: Outcome) -> Renewed {
    match outcome {
        Outcome::Ok(renewed) => Renewed::Held { deadline_ms: to_ms(renewed.deadline) },
        Outcome::Lost { reason, detail } => Renewed::Lost { key: key.to_owned(), reason, detail },
        Outcome::Retry { trouble } => Renewed::Odd(trouble),
    }
}

fn annul(key: String, fence: u64, why: &str) -> Op<BreakArgs> {
    Op::new(key, BreakArgs { reason: why.to_owned(), grace_ms: None, fence: Some(fence) })
}

fn lost(key: &str, answer: &Answer) -> Renewed {
    let reason = answer.reason().unwrap_or(reason::NOT_HELD).to_owned();
    Renewed::Lost { key: key.to_owned(), reason, detail: answer.detail().map(str::to_owned) }
}

/// The first copy of what was repeated did its work, and the second is told `not_held`.
fn all_ended(each: &Each) -> bool {
    let ended = |answer: &Answer| answer.is_true() || (each.repeated && answer.reason() == Some(reason::NOT_HELD));
    each.answers.iter().all(|answer| answer.as_ref().is_ok_and(ended))
}

/// Leaves the lines in which `token` waits, and ends grants of it that nobody has seen. `window`: they were asked with a
/// minimum hold, and no run began that it could be for.
pub async fn leave(
    client: &Client,
    keys: &[String],
    token: &Token,
    window: bool,
    timeout: Duration,
) -> Result<(), CallError> {
    let within = Within::of(client, timeout);
    if window {
        // Only a BREAK ends a grant without its window, and it needs the fence, which a RENEW tells.
        let renew = |key: &String| {
            // Never shortens: a millisecond adds nothing.
            Op::new(key.clone(), RenewArgs { token: token.clone(), ttl_ms: Some(1), fence: None })
        };
        let ops: Vec<_> = keys.iter().map(renew).collect();
        let each = ask_each(client, &ops, within).await?;
        let held = keys.iter().zip(&each.answers).filter_map(|(key, answer)| {
            let answer = answer.as_ref().ok().filter(|answer| answer.is_true())?;
            Some(annul(key.clone(), answer.fence()?, "not wanted any more"))
        });
        let held: Vec<_> = held.collect();
        if !held.is_empty() {
            ask_each(client, &held, within).await?;
        }
    }
    let release = |key: &String| Op::new(key.clone(), ReleaseArgs { token: token.clone(), fence: None });
    let ops: Vec<_> = keys.iter().map(release).collect();
    ask_each(client, &ops, within).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tenure_client::Boottime;
    use tenure_client::wire::{Problem, SlotGrant};

    use super::*;

    fn grants(keys: &[&str]) -> Grants {
        let grant = |key: &&str| Grant {
            key: (*key).to_owned(),
            token: "t".into(),
            fence: 7,
            ttl_ms: 30_000,
            deadline: Boottime { ns: 0 },
        };
        Grants::new(keys.iter().map(grant).collect()).unwrap()
    }

    fn judged(answers: &[&str]) -> Renewed {
        let read = |text: &&str| match text.strip_prefix("error ") {
            Some(code) => {
                Err(Box::new(Problem { code: code.to_owned(), detail: "why".to_owned(), ..Problem::default() }))
            }
            None => Ok(serde_json::from_str(text).unwrap()),
        };
        let each = Each {
            answers: answers.iter().map(read).collect(),
            sent: Boottime { ns: 1_000_000_000 },
            endpoint: "a:1".to_owned(),
            repeated: false,
        };
        let keys: Vec<&str> = ["a", "b", "c"].into_iter().take(answers.len()).collect();
        grants(&keys).judged(each).unwrap()
    }

    #[test]
    fn the_earliest_deadline_counts() {
        let long = r#"{"result": true, "ttl_ms": 60000}"#;
        let short = r#"{"result": true, "ttl_ms": 30000}"#;
        let alone = judged(&[short]);
        assert_eq!(judged(&[long, short, long]), alone);
        assert!(matches!(alone, Renewed::Held { deadline_ms: 30_000..31_000 }), "{alone:?}");
    }

    #[test]
    fn the_first_loss_is_named() {
        let held = r#"{"result": true, "ttl_ms": 60000}"#;
        let broken = r#"{"result": false, "reason": "broken", "detail": "maintenance"}"#;
        let lost = judged(&[held, broken, "error no_such_key"]);
        let wanted =
            Renewed::Lost { key: "b".to_owned(), reason: "broken".to_owned(), detail: Some("maintenance".to_owned()) };
        assert_eq!(lost, wanted);
        let deleted = judged(&["error no_such_key"]);
        let wanted = Renewed::Lost { key: "a".to_owned(), reason: "deleted".to_owned(), detail: None };
        assert_eq!(deleted, wanted);
    }

    #[test]
    fn an_answer_without_its_time_is_no_renewal() {
        assert!(matches!(judged(&[r#"{"result": true}"#]), Renewed::Odd(_)));
    }

    #[test]
    fn the_job_is_told_which_slot() {
        let told = |identity: Option<&str>| {
            let slot = SlotGrant { id: 3, fence: 7, identity: identity.map(str::to_owned), ..SlotGrant::default() };
            let environment = Grants::of_slot(slot::Grant {
                key: "pool".to_owned(),
                token: "t".into(),
                ttl_ms: 30_000,
                deadline: Boottime { ns: 0 },
                next: Boottime { ns: 0 },
                slot,
                ttl_raised: false,
                yours: false,
                took_over: None,
                wall: None,
            })
            .environment();
            let mut environment: Vec<String> =
                environment.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect();
            environment.retain(|line| !line.starts_with("TENURE_TOKEN"));
            environment.join(" ")
        };
        let all = r#"TENURE_GRANTS=[{"fence":7,"id":3,"key":"pool","token":"t"}]"#;
        assert_eq!(told(Some("me")), format!("{all} TENURE_MACHINE_ID=3 TENURE_KEY=pool TENURE_FENCE=7"));
        assert_eq!(told(None), format!("{all} TENURE_SLOT=3 TENURE_KEY=pool TENURE_FENCE=7"));
    }

    #[test]
    fn the_job_is_told_of_all() {
        let environment = grants(&["a key", "b"]).environment();
        let of = |name: &str| environment.iter().find(|(own, _)| *own == name).unwrap().1.to_str().unwrap().to_owned();
        assert_eq!([of("TENURE_KEY"), of("TENURE_FENCE")], ["a key", "7"]);
        let all: serde_json::Value = serde_json::from_str(&of("TENURE_GRANTS")).unwrap();
        assert_eq!(all[1], json!({"key": "b", "token": "t", "fence": 7}));
    }
}
