//! The engine: serves one volume from its replicas, alone.

mod api;

pub use api::{
    CasId, CasOutcome, Config, Effect, Event, IoAnswer, IoError, IoId, IoOp, IoResult, Leaving, Limits, Notice, Phase,
    Suspended,
};
