//! One who looks after a pool: another size, BREAK of a slot, now and then DEL or a lifetime; and who looks at it.

use tenure::keyspace::{Command, Holders, Key, Reply};

use super::pools::Process;
use super::service::Service;
use crate::judge::Shown;

/// Sizes.
const SIZE: std::ops::RangeInclusive<u64> = 1..=6;
/// Of a grace.
const GRACE_MS: std::ops::RangeInclusive<u64> = 1..=400;
/// Of the pool's lifetime.
const LIFE_MS: std::ops::RangeInclusive<u64> = 500..=4_000;

impl<S: Service> Process<S> {
    pub(super) async fn ward(mut self) {
        while !self.is_over() {
            self.rest(100..=900).await;
            let key = Key::clone(&self.pool);
            match self.dice.in_range(0..=99) {
                0..18 => drop(self.look().await),
                18..50 => self.look_at_holders().await,
                50..65 => {
                    let size = u32::try_from(self.dice.in_range(SIZE)).unwrap();
                    drop(self.send_apart(vec![Command::Resize { key, size }]).await);
                }
                65..85 => self.break_one().await,
                85..93 => drop(self.send_apart(vec![Command::Get { key }]).await),
                93..95 => {
                    let apart = Key::from(format!("nowhere-pool-{}", self.board.number()));
                    drop(self.send(Command::Del { keys: vec![key, apart], fence: None }).await);
                }
                95..97 => {
                    let ttl_ms = self.dice.in_range(LIFE_MS);
                    drop(self.send_apart(vec![Command::Expire { key, ttl_ms }]).await);
                }
                _ => drop(self.send_apart(vec![Command::Persist { key }]).await),
            }
        }
    }

    /// GET, the first id of the pool, and its size.
    async fn look(&mut self) -> Option<(u32, u32)> {
        let (node, patience) = (self.turn(40), self.patience());
        let seen = self.service.get(node, self.pool.to_string(), patience).await.ok()?;
        let shown = match seen.value {
            None => Shown::Nothing,
            Some(shown) => Shown::Pool(Box::new(shown.pool()?)),
        };
        let range = if let Shown::Pool(view) = &shown { Some((view.options.first, view.options.size)) } else { None };
        self.notes.shown.lock().unwrap().push((Key::clone(&self.pool), shown, seen.witness));
        range
    }

    async fn look_at_holders(&mut self) {
        let (node, patience, all) = (self.turn(40), self.patience(), self.dice.percent(40));
        let which = Holders { all, limit: 100, ..Holders::default() };
        let seen = self.service.holders(node, self.pool.to_string(), which, patience).await;
        let Ok(Some((page, witness))) = seen.map(|seen| seen.value.map(|page| (page, seen.witness))) else { return };
        let ids: Vec<u32> = page.slots.iter().map(|slot| slot.id).collect();
        self.notes.shown.lock().unwrap().push((Key::clone(&self.pool), Shown::Holders(page), witness));
        let Some(last) = (ids.len() as u64).checked_sub(1) else { return };
        let id = ids[usize::try_from(self.dice.in_range(0..=last)).unwrap()];
        let which = Holders { id: Some(id), limit: 1, ..Holders::default() };
        let seen = self.service.holders(node, self.pool.to_string(), which, patience).await;
        let Ok(Some((page, witness))) = seen.map(|seen| seen.value.map(|page| (page, seen.witness))) else { return };
        let shown = Shown::Slot(id, page.slots.into_iter().next());
        self.notes.shown.lock().unwrap().push((Key::clone(&self.pool), shown, witness));
    }

    async fn break_one(&mut self) {
        let Some((first, size)) = self.look().await else { return };
        let id = first + u32::try_from(self.dice.in_range(0..=u64::from(size) - 1)).unwrap();
        let grace_ms = if self.dice.percent(50) { 0 } else { self.dice.in_range(GRACE_MS) };
        let reason = format!("pool {}", self.board.number()).into();
        let key = Key::clone(&self.pool);
        let broken = self.send(Command::BreakSlot { key, id, reason, grace_ms, fence: None }).await;
        if broken.is_some_and(|answered| matches!(answered.reply, Reply::OfSlot { .. })) {
            self.rest(0..=50).await;
        }
    }
}
