//! Label and field selectors: which objects a list, a watch or a controller means.
//!
//! Both parsers take what a client wrote in a URL, so both are bounded and never panic; their errors are
//! worded as Kubernetes words them, because they are printed as they are.

mod field;
mod label;
mod lexer;

pub use field::{FieldOperator, FieldRequirement, FieldSelector};
pub use label::{LabelSelector, Labels, Operator, Requirement};

use crate::status::ApiError;

/// A selector travels in a URL, and `http` refuses longer ones.
pub const MAX_SELECTOR_BYTES: usize = 64 * 1024;

/// Why a text or an object is no selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("selector may not be more than {MAX_SELECTOR_BYTES} bytes")]
    TooLong,
    #[error("found '{found}', expected: {expected}")]
    Unexpected { found: String, expected: &'static str },
    /// The one place where the usual comma is missing upstream.
    #[error("found '{found}' expected: '('")]
    NoValues { found: String },
    #[error("unable to parse requirement: {0}")]
    Requirement(Box<SelectorError>),
    /// Key, operator or values of one requirement, already worded.
    #[error("{0}")]
    Invalid(String),
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// Kubernetes prints the character as its number.
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(u32),
}

impl From<SelectorError> for ApiError {
    fn from(e: SelectorError) -> Self {
        Self::bad_request(e.to_string())
    }
}
