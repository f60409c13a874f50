//! Query parameters as Kubernetes checks them: every mistake at once, in the words of its options' kind.

use serde_json::json;
use tether_machinery::field::{FieldError, Path};
use tether_machinery::status::{ApiError, Named};

use crate::request::Query;

/// Kubernetes' limit on the name of a field manager.
const MAX_MANAGER_BYTES: usize = 128;

/// 422 for `kind` of the group `meta.k8s.io`, if there is something to say.
pub fn refuse(kind: &str, errors: &[FieldError]) -> Result<(), ApiError> {
    let at = Named { group: "meta.k8s.io", resource: kind, name: "" };
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(at, errors)) }
}

fn forbidden(field: &str, why: &str) -> FieldError {
    FieldError::forbidden(Path::new(field), why)
}

/// What the parameters of a list must satisfy together.
pub fn check_list(query: &Query) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    let revision = query.get("resourceVersion").unwrap_or_default();
    if let Some(matching) = query.get("resourceVersionMatch") {
        let field = "resourceVersionMatch";
        if revision.is_empty() {
            errors.push(forbidden(field, "resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if query.get("continue").is_some() {
            errors.push(forbidden(field, "resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            errors.push(FieldError::not_supported(Path::new(field), matching, &["Exact", "NotOlderThan", ""]));
        }
        if matching == "Exact" && revision == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            errors.push(forbidden(field, why));
        }
    }
    if query.flag("sendInitialEvents").is_some() {
        errors.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    refuse("ListOptions", &errors)
}

/// The same for a watch.
pub fn check_watch(query: &Query) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    let field = "resourceVersionMatch";
    let matching = query.get(field);
    let initial = query.flag("sendInitialEvents").is_some();
    if initial && matching != Some("NotOlderThan") {
        errors.push(forbidden(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if let Some(matching) = matching {
        if !initial {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(forbidden(field, why));
        }
        if matching != "NotOlderThan" {
            errors.push(FieldError::not_supported(Path::new(field), matching, &["NotOlderThan"]));
        }
    }
    // A watch that names no revision begins with the present state, which means both parameters.
    let from_state = !initial && matches!(query.get("resourceVersion"), None | Some("" | "0"));
    if query.get("continue").is_some() && (matching.is_some() || from_state) {
        errors.push(forbidden(field, "resourceVersionMatch is forbidden when continue is provided"));
    }
    refuse("ListOptions", &errors)
}

/// Options of every write: `dryRun`, `fieldManager`, `fieldValidation`, `force`.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub manager: String,
    pub validation: FieldValidation,
    pub force: bool,
}

/// What happens to fields that the schema does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Which write it is, for the options have different names and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Create,
    Update,
    Patch,
    Apply,
}

impl WriteOptions {
    /// `agent` is the User-Agent header: its first word is the field manager when none is given.
    pub fn parse(write: Write, query: &Query, agent: &str) -> Result<Self, ApiError> {
        let kind = match write {
            Write::Create => "CreateOptions",
            Write::Update => "UpdateOptions",
            Write::Patch | Write::Apply => "PatchOptions",
        };
        let mut errors = Vec::new();
        let given = query.get("fieldManager");
        match write {
            Write::Apply if given.is_none() => {
                errors.push(FieldError::required(Path::new("fieldManager"), "is required for apply patch"));
            }
            Write::Patch if query.flag("force").is_some() => {
                errors.push(forbidden("force", "may not be specified for non-apply patch"));
            }
            _ => {}
        }
        errors.extend(check_manager(given.unwrap_or_default()));
        errors.extend(check_dry_run(query.all("dryRun")));
        let validation = match query.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let allowed = ["", "Ignore", "Strict", "Warn"];
                errors.push(FieldError::not_supported(Path::new("fieldValidation"), other, &allowed));
                FieldValidation::Warn
            }
        };
        refuse(kind, &errors)?;
        Ok(Self {
            dry_run: query.get("dryRun").is_some(),
            manager: given.map_or_else(|| manager_from_agent(agent), str::to_owned),
            validation,
            force: query.flag("force").unwrap_or(false),
        })
    }
}

fn check_manager(name: &str) -> Vec<FieldError> {
    let path = Path::new("fieldManager");
    let mut errors = Vec::new();
    if name.len() > MAX_MANAGER_BYTES {
        errors.push(FieldError::too_long(path.clone(), MAX_MANAGER_BYTES));
    }
    errors.extend(name.char_indices().filter(|(_, c)| c.is_control()).map(|(at, odd)| {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(odd));
        FieldError::invalid(path.clone(), name, why)
    }));
    errors
}

/// `All` is the only stage there is.
pub fn check_dry_run<S: AsRef<str>>(stages: &[S]) -> Option<FieldError> {
    let stages: Vec<&str> = stages.iter().map(AsRef::as_ref).collect();
    if stages.iter().all(|stage| *stage == "All") {
        return None;
    }
    Some(FieldError::not_supported(Path::new("dryRun"), json!(stages), &["All"]))
}

fn manager_from_agent(agent: &str) -> String {
    let first = agent.split('/').next().unwrap_or_default().trim();
    let printable: String = first.chars().filter(|c| !c.is_control()).take(MAX_MANAGER_BYTES).collect();
    if printable.is_empty() { "unknown".to_owned() } else { printable }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(Some(text)).expect("a short query must parse")
    }

    #[test]
    fn lists_and_watches_refuse_what_cannot_be_meant() {
        let both = "ListOptions.meta.k8s.io \"\" is invalid: ";
        let cases = [
            ("list", "resourceVersionMatch=Exact", "unless resourceVersion is provided"),
            ("list", "resourceVersionMatch=Exact&resourceVersion=0", "for resourceVersion \"0\""),
            ("list", "resourceVersionMatch=Odd&resourceVersion=1", "Unsupported value: \"Odd\""),
            ("list", "sendInitialEvents=true", "forbidden for list"),
            ("watch", "sendInitialEvents=true", "requires setting resourceVersionMatch"),
            ("watch", "resourceVersionMatch=NotOlderThan", "unless sendInitialEvents is provided"),
            ("watch", "continue=x", "when continue is provided"),
            ("watch", "continue=x&resourceVersion=0", "when continue is provided"),
        ];
        for (verb, text, why) in cases {
            let check = if verb == "list" { check_list } else { check_watch };
            let error = check(&query(text)).expect_err(text);
            assert_eq!(error.code, 422, "{text}");
            assert!(error.message.starts_with(both) && error.message.contains(why), "{text}: {error}");
        }
        check_list(&query("resourceVersionMatch=Exact&resourceVersion=7")).expect("a list at a revision");
        check_watch(&query("continue=x&resourceVersion=7")).expect("a continue token means nothing to a watch");
        check_watch(&query("sendInitialEvents=true&resourceVersionMatch=NotOlderThan")).expect("a streaming list");
    }

    #[test]
    fn writes_name_every_bad_parameter() {
        let bad = query("dryRun=All&dryRun=Some&fieldValidation=Loud");
        let error = WriteOptions::parse(Write::Create, &bad, "").expect_err("bad options");
        assert!(error.message.starts_with("CreateOptions.meta.k8s.io \"\" is invalid: ["), "{error}");
        assert!(error.message.contains("dryRun: Unsupported value: [\"All\",\"Some\"]"), "{error}");
        assert!(error.message.contains("fieldValidation: Unsupported value: \"Loud\""), "{error}");
        let error = WriteOptions::parse(Write::Apply, &query(""), "").expect_err("no manager");
        assert!(error.message.contains("fieldManager: Required value: is required for apply patch"), "{error}");
        let error = WriteOptions::parse(Write::Patch, &query("force=true"), "").expect_err("force");
        assert!(error.message.contains("may not be specified for non-apply patch"), "{error}");
    }

    #[test]
    fn the_manager_comes_from_the_agent_if_need_be() {
        let options = WriteOptions::parse(Write::Update, &query(""), "kubectl/v1.32.4 (linux/amd64)").expect("options");
        assert_eq!(options.manager, "kubectl");
        let options = WriteOptions::parse(Write::Update, &query("fieldManager=me"), "kubectl/v1").expect("options");
        assert_eq!(options.manager, "me");
    }
}
