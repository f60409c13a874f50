//! Requests of all clients, carried to the oracle: which engine had them, when they began, how they ended.

use std::collections::BTreeMap;

use tether_replication::ids::{Epoch, Holder};

use crate::client::{Op, Report};
use crate::oracle::{Oracle, Value, Violation};

#[derive(Clone, Copy, Debug)]
struct Asked {
    op: Op,
    begun: u64,
    through: Holder,
}

/// What clients did.
#[derive(Debug, Default)]
pub struct History {
    pub oracle: Oracle,
    requests: BTreeMap<u64, Asked>,
    /// Requests answered without an error.
    pub done: u64,
    pub failed: u64,
    pub lost: u64,
}

impl History {
    /// Takes a report; `through` is the engine that the client talks to.
    pub fn take(&mut self, report: Report, through: Holder, now: u64) -> Result<(), Violation> {
        match report {
            Report::Begun { request, op } => {
                self.requests.insert(request, Asked { op, begun: now, through });
                let (first, count, value) = match op {
                    Op::Write { first, count, .. } => (first, count, Value::Data(request)),
                    Op::Zero { first, count, .. } | Op::Trim { first, count } => (first, count, Value::Zero),
                    Op::Read { .. } | Op::Flush => return Ok(()),
                };
                for sector in first..first + count {
                    self.oracle.begin(sector, request, value, now);
                }
            }
            Report::Done { request, values } => {
                self.done += 1;
                let Some(asked) = self.requests.get(&request).copied() else { return Ok(()) };
                return self.done(request, asked, &values, now);
            }
            Report::Failed { .. } => self.failed += 1,
            Report::Lost { .. } => self.lost += 1,
        }
        Ok(())
    }

    fn done(&mut self, request: u64, asked: Asked, values: &[Value], now: u64) -> Result<(), Violation> {
        match asked.op {
            Op::Read { first, .. } => {
                for (sector, value) in (first..).zip(values) {
                    self.oracle.read(sector, *value, asked.begun, now).map_err(|Violation(text)| {
                        Violation(format!("request {request} through engine {}: {text}", asked.through))
                    })?;
                }
            }
            Op::Write { first, count, fua } | Op::Zero { first, count, fua } => {
                for sector in first..first + count {
                    self.oracle.acknowledged(sector, request, now, true, fua);
                }
            }
            Op::Trim { first, count } => {
                for sector in first..first + count {
                    self.oracle.acknowledged(sector, request, now, false, false);
                }
            }
            Op::Flush => self.oracle.flushed(asked.begun, now),
        }
        Ok(())
    }

    /// An engine of this epoch serves: what older ones had in hand is decided.
    pub fn served(&mut self, epoch: Epoch, epochs: &BTreeMap<Holder, Epoch>, now: u64) {
        let requests = &self.requests;
        let older = |write: u64| {
            let asked = requests.get(&write);
            asked.is_some_and(|asked| epochs.get(&asked.through).is_some_and(|other| *other < epoch))
        };
        self.oracle.fenced(now, older);
    }
}
