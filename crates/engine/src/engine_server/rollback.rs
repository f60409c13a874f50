//! A migration that is rolled back before its promotion: the record stops naming the standby.
//!
//! The standby does it by stopping. Where it cannot be reached, the engine that holds the volume does it: it reads who
//! is named, and clears exactly that one. If the promotion was faster, the change is refused.

use tether_replication::engine::{CasOutcome, Phase};
use tether_replication::ids::Holder;
use tether_replication::record::{Change, Record, Refusal};

use super::EngineServer;
use super::settings::Answer;
use crate::host::{CallId, CommandId, Effects, Time};
use crate::record::RecordCall;

/// Rollbacks under way.
#[derive(Debug, Default)]
pub(super) struct Rollback {
    /// Who asked, by the call that is waited for.
    calls: Vec<(CallId, CommandId)>,
}

impl Rollback {
    fn take(&mut self, call: CallId) -> Option<CommandId> {
        let at = self.calls.iter().position(|(waited, _)| *waited == call)?;
        Some(self.calls.swap_remove(at).1)
    }
}

impl EngineServer {
    pub(super) fn roll_back(&mut self, id: CommandId, standby: Option<Holder>, now: Time, out: &mut Effects<Self>) {
        match self.phase() {
            Phase::Standby => self.stop(id, now, out),
            Phase::Serving => {
                let call = match standby {
                    Some(standby) => out.call(RecordCall::Change(Change::ClearStandby { standby })),
                    None => out.call(RecordCall::Load),
                };
                self.rollback.calls.push((call, id));
            }
            phase => {
                let why = format!("the engine is {phase:?}: only a standby, or the engine that serves, can roll back");
                out.answer(id, Answer::Failed(why));
            }
        }
    }

    /// True if the record was loaded for this.
    pub(super) fn roll_back_from(
        &mut self,
        call: CallId,
        result: &Result<Option<Record>, String>,
        out: &mut Effects<Self>,
    ) -> bool {
        let Some(id) = self.rollback.take(call) else { return false };
        match result {
            Ok(Some(Record { standby: Some(standby), .. })) => {
                let call = out.call(RecordCall::Change(Change::ClearStandby { standby: *standby }));
                self.rollback.calls.push((call, id));
            }
            Ok(_) => out.answer(id, Answer::Done),
            Err(why) => out.answer(id, Answer::Failed(why.clone())),
        }
        true
    }

    pub(super) fn rolled_back(&mut self, call: CallId, outcome: CasOutcome, out: &mut Effects<Self>) {
        let Some(id) = self.rollback.take(call) else { return };
        let failed = |why: &str| Answer::Failed(format!("{why}; ask again"));
        let answer = match outcome {
            CasOutcome::Applied(_) => Answer::Done,
            CasOutcome::Refused { refusal: Refusal::NotStandby { .. }, current } => {
                if current.holder == self.settings.holder {
                    Answer::Done
                } else {
                    Answer::Failed("the standby was promoted: start an engine here to go back".to_owned())
                }
            }
            CasOutcome::Refused { refusal, .. } => failed(&refusal.to_string()),
            CasOutcome::NotSent => failed("the record was not reached"),
            CasOutcome::Unknown => failed("it is not known whether the record changed"),
        };
        out.answer(id, answer);
    }
}
