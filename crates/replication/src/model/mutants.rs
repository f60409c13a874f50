//! Every rule is needed: each one removed leads to a violation, found from the middle of a story.
//!
//! A story is the way to a situation in which the rule is about to matter; from there every continuation is
//! searched. With all rules in force, the same story (as far as it can still be told) has no bad end.

use super::action::Action::{self, Arrive};
use super::scopes::serving;
use super::search::search;
use super::stories::{long_stories, stories};
use super::world::{Scope, World};
use crate::ids::Session;
use crate::rules::{Rule, Rules};

/// States to be searched for a violation at most, and states searched without one when all rules are in force.
const MAX_STATES: usize = 60_000;
const MAX_SAFE_STATES: usize = 15_000;

/// The way to a situation in which a rule is about to matter.
pub(super) struct Story {
    pub(super) rule: Rule,
    pub(super) scope: Scope,
    pub(super) steps: Vec<Action>,
}

/// `Session(0)` in a story stands for the newest one.
fn resolve(world: &World, action: Action) -> Action {
    match action {
        Arrive(engine, replica, Session(0)) => {
            let of = |link: &&super::world::Link| (link.engine, link.replica) == (engine, replica);
            let newest = world.links.iter().filter(of).map(|link| link.session).max().unwrap_or_default();
            Arrive(engine, replica, newest)
        }
        action => action,
    }
}

/// Tells the story as far as it can be told; where it could not go on.
fn tell(scope: &Scope, steps: &[Action]) -> (World, Option<(usize, Action)>) {
    let mut world = serving(scope);
    let mut stuck = None;
    for (at, step) in steps.iter().enumerate() {
        let step = resolve(&world, *step);
        if world.violation.is_some() {
            break;
        }
        if world.actions(scope).contains(&step) {
            world.step(scope, step);
        } else if stuck.is_none() {
            stuck = Some((at + 1, step));
        }
    }
    (world, stuck)
}

impl Story {
    fn check(&self) -> Result<String, String> {
        let rules = Rules::without(self.rule);
        let mutant = Scope { rules, ..self.scope.clone() };
        let (world, stuck) = tell(&mutant, &self.steps);
        let caught = if let Some(what) = world.violation {
            format!("in the story: {what}")
        } else {
            let found = search(&mutant, world, MAX_STATES, false);
            let Some((what, trace)) = &found.violation else {
                return Err(format!("{:?}: not caught, {found}; story stuck at {stuck:?}", self.rule));
            };
            format!("{} states, {} more steps: {what}", found.states, trace.len())
        };
        let (world, _) = tell(&self.scope, &self.steps);
        let safe = match world.violation {
            Some(what) => return Err(format!("{:?}: violation with all rules, in the story: {what}", self.rule)),
            None => search(&self.scope, world, MAX_SAFE_STATES, true),
        };
        if safe.violation.is_some() {
            return Err(format!("{:?}: violation with all rules: {safe}", self.rule));
        }
        let stuck = stuck.map_or(String::new(), |stuck| format!(" (story stuck at {stuck:?})"));
        Ok(format!("{:24} caught, {caught}{stuck}; with it: {safe}", format!("{:?}", self.rule)))
    }
}

fn check_all(stories: &[Story]) {
    let results: Vec<_> = stories.iter().map(Story::check).collect();
    for result in &results {
        println!("{}", result.as_ref().unwrap_or_else(|error| error));
    }
    assert!(results.iter().all(Result::is_ok), "some rules can be removed unnoticed");
}

#[test]
fn every_rule_has_a_story() {
    let told: Vec<Rule> = stories().iter().chain(&long_stories()).map(|story| story.rule).collect();
    for rule in Rule::ALL {
        assert!(told.contains(rule), "{rule:?} is not told: {}", rule.says());
    }
}

#[test]
fn every_rule_is_needed() {
    check_all(&stories());
}

#[test]
fn every_rule_about_joining_and_clearing_is_needed() {
    check_all(&long_stories());
}
