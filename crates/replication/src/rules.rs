//! The rules of the protocol by name, so that a model can take one away and show what it was for.
//!
//! In an ordinary build [`Rules`] has no content and every rule is a constant `true`: the compiler removes the
//! question. Under test, or with the feature `mutants`, rules can be removed one at a time.

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $rule:ident,)+) => {
        /// One rule of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(non_camel_case_types)]
        pub enum Rule {
            $($(#[doc = $doc])+ $rule,)+
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Self] = &[$(Self::$rule,)+];

            /// What it says.
            pub fn says(self) -> &'static str {
                match self { $(Self::$rule => concat!($($doc,)+).trim_start(),)+ }
            }
        }

        impl Rules {
            $($(#[doc = $doc])+
            #[inline]
            pub const fn $rule(self) -> bool {
                self.on(Rule::$rule)
            })+
        }
    };
}

/// Which rules are in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    #[cfg(any(test, feature = "mutants"))]
    off: u64,
}

impl Rules {
    /// All rules but one.
    #[cfg(any(test, feature = "mutants"))]
    pub const fn without(rule: Rule) -> Self {
        Self { off: 1 << rule as u64 }
    }

    #[cfg(any(test, feature = "mutants"))]
    const fn on(self, rule: Rule) -> bool {
        self.off >> rule as u64 & 1 == 0
    }

    #[cfg(not(any(test, feature = "mutants")))]
    #[allow(clippy::unused_self)]
    const fn on(self, _rule: Rule) -> bool {
        true
    }
}

rules! {
    /// A promise is answered only after every request accepted from older sessions was applied or dropped.
    drain,
    /// A new session inside an epoch ends all earlier ones.
    session,
    /// A promise names the engine process, not only the number of the epoch.
    holder,
    /// A promise is durable before it is answered.
    persist,
    /// The activity log is durable before the write is applied, not merely before it is acknowledged.
    log_ahead,
    /// A member whose host rebooted with regions in its log stays doubtful until those were made equal.
    doubt_kept,
    /// Doubtful members alone are no basis to serve, unless all of the set is open and all are doubtful.
    doubt,
    /// Regions are made equal from a member that is not doubtful.
    source_not_doubtful,
    /// What is cleared from the log goes to the missed maps first.
    missed_map,
    /// The set to open is the one that the start's compare-and-swap returned.
    set_of_the_start,
    /// An engine process mints its own epoch.
    new_epoch,
    /// A start makes equal what the logs name.
    equalise,
    /// What the logs name is the union of all opened members' logs.
    union,
    /// Members flush before the record says which ones were opened.
    flush_at_start,
    /// The record says which members were opened before the engine serves.
    record_opened,
    /// A read waits for overlapping writes in flight.
    read_waits,
    /// A write waits for overlapping reads in flight.
    write_waits_for_reads,
    /// Overlapping writes are done one after the other.
    write_waits_for_writes,
    /// A write is acknowledged when every required member stored it.
    all_store,
    /// A member that does not answer is out of the record before anything is acknowledged without it.
    shrink_first,
    /// Kept members flush before a shrink.
    flush_before_shrink,
    /// Kept members stored every write in flight before that flush.
    quiesce,
    /// The last member is never removed.
    last_member,
    /// Nothing is sent or acknowledged while the outcome of a change of the record is unknown.
    unknown,
    /// Changes of the record compare its generation.
    compare_generation,
    /// A member that rebooted under a living engine is away.
    rebooted_is_away,
    /// A joiner is required before the change that records it is sent, until its outcome is known.
    grow_required_first,
    /// A joiner flushes before it is recorded.
    flush_before_grow,
    /// A joiner is required first and flushes then: a flush sent earlier does not count.
    flush_after_required,
    /// A joiner is not read until it is known to be recorded.
    joiner_not_read,
    /// A write that the joiner did not store restarts the join.
    joiner_missed_write,
    /// Copying a range excludes writes to it.
    copy_excludes_writes,
    /// A resync copies what the source's activity log names.
    source_log,
    /// A resync copies what the returning replica's own log names.
    own_log,
    /// A flush clears only regions to which no write was in flight since it was sent.
    clear_only_quiet,
    /// Only a flush after the change that ended the start clears regions.
    clear_after_start,
    /// Reads need a lease.
    lease,
    /// A lease counts from the sending of the answered request.
    lease_from_sending,
    /// The successor's wait begins when a member promised, not when the epoch was minted.
    wait_after_promise,
    /// The wait is skipped only if every older engine is known to be stopped.
    all_older_stopped,
    /// A standby reads through the source.
    standby_reads_source,
    /// Promotion makes members equal like any start.
    promotion_equalises,
    /// Promotion requires that the record still names the standby.
    promotion_named,
    /// A promotion skips the wait only if the engine that stopped is the one that it took the volume from.
    source_is_previous,
    /// A fenced engine never sends again what it had sent.
    no_replay,
}
