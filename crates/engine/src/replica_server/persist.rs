//! What the protocol must remember, in the words of the store's state file.

use std::collections::BTreeMap;

use tether_replication::ids::{BootId, Epoch, Generation, Holder, MemberId, Session};
use tether_replication::region::RegionSet;
use tether_replication::replica::{Durable, Promise, StateChange};
use tether_store::Change;
use tether_store::state::{Promise as StorePromise, State};
use uuid::Uuid;

/// Note in the state file: the chain of snapshots is being built, its content is not complete.
pub(super) const REBUILDING: &str = "rebuilding";

/// What the state file says, as the protocol knows it.
pub(super) fn durable(state: &State, boot: BootId) -> Durable {
    let header = &state.header;
    let promise = Uuid::parse_str(&header.promise.holder).ok().map(|holder| Promise {
        epoch: Epoch(header.promise.epoch),
        holder: Holder(holder.as_u128()),
        session: Session(header.promise.session),
    });
    let maps = header.maps.iter().filter_map(|owner| {
        let member = MemberId::new(&owner.owner)?;
        let map = state.maps.get(owner.slot)?.as_ref()?;
        Some((member, map.iter().map(|region| region as u32).collect::<RegionSet>()))
    });
    Durable {
        promise,
        generation: Generation(header.generation),
        // Opening the directory compared boots already and noted the doubt.
        boot,
        doubtful: header.doubt,
        rebuilding: header.notes.contains_key(REBUILDING) || header.out_of_sync.is_some(),
        log: state.active_regions().map(|region| region as u32).collect(),
        maps: maps.collect::<BTreeMap<_, _>>(),
    }
}

/// The store's changes for `changes`, in the same order. `owners` are the replicas that maps are kept for.
pub(super) fn changes(changes: &[StateChange], mut owners: Vec<String>, generation: u64) -> Vec<Change> {
    let mut all = Vec::new();
    for change in changes {
        match change {
            StateChange::Promise(promise, generation) => {
                all.push(Change::Promise(StorePromise {
                    epoch: promise.epoch.0,
                    holder: promise.holder.to_string(),
                    session: promise.session.0,
                }));
                all.push(Change::Generation(generation.0));
            }
            StateChange::Boot { doubtful, .. } => {
                if *doubtful {
                    all.push(Change::Doubt(true));
                }
            }
            StateChange::Settled => {
                all.push(Change::Doubt(false));
                all.push(Change::OutOfSync(None));
                all.push(Change::Note { name: REBUILDING.to_owned(), value: None });
            }
            StateChange::Rebuilding => {
                all.push(Change::Note { name: REBUILDING.to_owned(), value: Some("true".to_owned()) });
            }
            StateChange::LogAdd(regions) => all.push(Change::LogAdd(wide(regions))),
            StateChange::LogClear(regions) => {
                // Into the maps first: a crash in between leaves a region in both, never in neither.
                for owner in &owners {
                    all.push(Change::MapAdd { owner: owner.clone(), regions: wide(regions) });
                }
                all.push(Change::LogClear(wide(regions)));
            }
            StateChange::MapStart(member) => {
                let owner = member.to_string();
                if !owners.contains(&owner) {
                    owners.push(owner.clone());
                }
                all.push(Change::MapBegin { owner, generation });
            }
            StateChange::MapDrop(member) => {
                let owner = member.to_string();
                if let Some(at) = owners.iter().position(|known| *known == owner) {
                    owners.remove(at);
                    all.push(Change::MapEnd { owner });
                }
            }
            StateChange::MapsDrop => {
                all.extend(owners.drain(..).map(|owner| Change::MapEnd { owner }));
            }
        }
    }
    all
}

fn wide(regions: &RegionSet) -> Vec<u64> {
    regions.iter().map(u64::from).collect()
}
