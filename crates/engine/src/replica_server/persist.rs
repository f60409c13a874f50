//! What the protocol must remember, in the words of the store's state file.

use std::collections::BTreeMap;

use tether_replication::ids::{BootId, Epoch, Generation, Holder, MemberId, Session};
use tether_replication::region::RegionSet;
use tether_replication::replica::{Durable, Promise, StateChange};
use tether_store::Change;
use tether_store::state::{Promise as StorePromise, State};
use uuid::Uuid;

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
        // Somebody else wrote here: nothing that is known about differences holds, all of it must be compared.
        rebuilding: header.rebuilding || header.out_of_sync.is_some(),
        log: state.active_regions().map(|region| region as u32).collect(),
        maps: maps.collect::<BTreeMap<_, _>>(),
    }
}

/// The store's changes for `changes`, in the same order.
pub(super) fn changes(changes: &[StateChange]) -> Vec<Change> {
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
                all.extend([Change::Doubt(false), Change::OutOfSync(None), Change::Rebuilding(false)]);
            }
            StateChange::Rebuilding => all.push(Change::Rebuilding(true)),
            StateChange::LogAdd(regions) => all.push(Change::LogAdd(wide(regions))),
            StateChange::LogClear(regions) => all.push(Change::LogClear(wide(regions))),
            StateChange::MapStart(member) => all.push(Change::MapBegin { owner: member.to_string() }),
            StateChange::MapDrop(member) => all.push(Change::MapEnd { owner: member.to_string() }),
            StateChange::MapsDrop => all.push(Change::MapsEnd),
        }
    }
    all
}

fn wide(regions: &RegionSet) -> Vec<u64> {
    regions.iter().map(u64::from).collect()
}
