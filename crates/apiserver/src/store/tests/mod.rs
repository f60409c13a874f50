//! Tests of the store, in the words of its users: objects are put, deleted, listed and watched.

mod basics;
mod campaign;
mod damage;
mod failures;
mod kill;
mod life;
mod lists;
mod measure;
mod oracle;
mod power;
mod properties;
mod watches;

use std::sync::Arc;

use bytes::Bytes;

use super::*;

/// A value as a caller would render it: it carries its own revision.
fn render(text: &str) -> impl FnOnce(u64) -> Bytes + Send + 'static {
    let text = text.to_owned();
    move |revision| Bytes::from(format!("{text}@{revision}"))
}

fn put(text: &str) -> Change {
    Change::put(render(text))
}

fn delete(text: &str) -> Change {
    Change::delete(render(text))
}

fn pod(namespace: &str, name: &str) -> Key {
    Key::new("pods", namespace, name)
}

fn text(entry: &Entry) -> String {
    format!("{}/{}={}", entry.key.namespace, entry.key.name, String::from_utf8_lossy(&entry.value))
}

fn open(dir: &tempfile::TempDir) -> Arc<Store> {
    open_bounded(dir, Options::default())
}

fn open_bounded(dir: &tempfile::TempDir, options: Options) -> Arc<Store> {
    Store::open(dir.path().join("objects.redb"), options).unwrap()
}
