//! Rules about Markdown: a link into the repository leads somewhere.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::Finding;
use super::files::File;

static LINK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\]\(([^)\s]+)\)").expect("the pattern must compile"));

pub(super) fn check(root: &Path, file: &File) -> Vec<Finding> {
    if !file.is("md") {
        return Vec::new();
    }
    let folder = root.join(&file.path).parent().expect("a file must have a folder").to_owned();
    let links = LINK.captures_iter(&file.text).map(|found| found.get(1).expect("the group must match").as_str());
    links
        .filter(|link| !link.contains("://") && !link.starts_with('#') && !link.starts_with("mailto:"))
        .filter(|link| !folder.join(link.split('#').next().unwrap_or_default()).exists())
        .map(|link| Finding::error(&file.path, format!("link to {link:?} leads nowhere")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_must_lead_somewhere() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        std::fs::write(root.path().join("docs/here.md"), "").unwrap();
        let text = "[a](here.md#x) [b](https://example.com/) [c](#top) [d](gone.md)";
        let file = File { path: "docs/index.md".to_owned(), text: text.to_owned() };
        let findings = check(root.path(), &file);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].text.contains("gone.md"));
    }
}
