//! `GET /containerLogs/NAMESPACE/POD/CONTAINER`: what a container wrote, from the files that its shim keeps.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use jiff::{SignedDuration, Timestamp};
use tether_plan::object::uid;

use super::{Body, Node, text};
use crate::container::files::{PodDir, RunDir, State};

/// Between two looks at a log that is followed; only while somebody follows it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What is sent at once.
const CHUNK_BYTES: usize = 64 << 10;

/// What of a log is wanted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail: Option<usize>,
    limit_bytes: Option<usize>,
    since: Option<Timestamp>,
    /// `stdout` or `stderr`; both if none is named.
    stream: Option<String>,
}

impl Wanted {
    fn parse(query: &str, now: Timestamp) -> Result<Self, String> {
        let mut wanted = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let flag = || matches!(&*value, "true" | "1");
            let number = || value.parse::<usize>().map_err(|_| format!("{key}: {value:?} is no number"));
            match &*key {
                "follow" => wanted.follow = flag(),
                "previous" => wanted.previous = flag(),
                "timestamps" => wanted.timestamps = flag(),
                "tailLines" => wanted.tail = Some(number()?),
                "limitBytes" => wanted.limit_bytes = Some(number()?),
                "sinceSeconds" => {
                    let seconds = SignedDuration::from_secs(i64::try_from(number()?).unwrap_or(i64::MAX));
                    wanted.since = Some(now.saturating_sub(seconds).map_err(|error| error.to_string())?);
                }
                "sinceTime" => {
                    wanted.since = Some(value.parse().map_err(|_| format!("sinceTime: {value:?} is no time"))?);
                }
                "stream" if matches!(&*value, "Stdout" | "Stderr") => wanted.stream = Some(value.to_ascii_lowercase()),
                _ => {}
            }
        }
        Ok(wanted)
    }

    /// A line as it is sent; `None` if it is not wanted.
    fn line<'a>(&self, line: &'a [u8]) -> Option<Vec<&'a [u8]>> {
        let mut words = line.splitn(4, |byte| *byte == b' ');
        let (time, stream, part) = (words.next()?, words.next()?, words.next()?);
        let content = words.next().unwrap_or_default();
        if self.stream.as_ref().is_some_and(|wanted| wanted.as_bytes() != stream) {
            return None;
        }
        let at = || std::str::from_utf8(time).ok()?.parse::<Timestamp>().ok();
        if self.since.is_some_and(|since| at().is_some_and(|at| at < since)) {
            return None;
        }
        let mut sent: Vec<&[u8]> = if self.timestamps { vec![time, b" "] } else { Vec::new() };
        sent.push(content);
        if part == b"F" {
            sent.push(b"\n");
        }
        Some(sent)
    }
}

pub(super) fn answer(node: &Node, namespace: &str, pod: &str, container: &str, query: &str) -> Response<Body> {
    let wanted = match Wanted::parse(query, Timestamp::now()) {
        Ok(wanted) => wanted,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    let Some(found) = node.pods.get(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod \"{pod}\" not found"));
    };
    let dir = PodDir { path: crate::volumes::pod_dir(&node.root, uid(&*found)) };
    let runs = dir.runs_of(container);
    let run = if wanted.previous { runs.iter().rev().nth(1) } else { runs.last() };
    let Some(run) = run.cloned() else {
        let words = if wanted.previous {
            format!("previous terminated container \"{container}\" in pod \"{pod}\" not found")
        } else {
            format!("container \"{container}\" in pod \"{pod}\" is waiting to start or has no command to run")
        };
        return text(StatusCode::BAD_REQUEST, words);
    };
    let body = StreamBody::new(stream::unfold(Reader::new(run, wanted), |mut reader| async move {
        let chunk = reader.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(chunk))), reader))
    }));
    let mut response = Response::new(body.boxed_unsync());
    let plain = http::HeaderValue::from_static("text/plain");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

/// Reads a log to its end, and beyond it if it is followed.
pub(super) struct Reader {
    run: RunDir,
    wanted: Wanted,
    file: Option<File>,
    /// What was read and has no end of line yet.
    rest: Vec<u8>,
    /// What is to be sent.
    ready: Vec<u8>,
    begun: bool,
}

impl Reader {
    fn new(run: RunDir, wanted: Wanted) -> Self {
        Self { run, wanted, file: None, rest: Vec::new(), ready: Vec::new(), begun: false }
    }

    /// What a run writes to one of its streams from now on.
    pub fn from_now_on(run: RunDir, stream: &str) -> Self {
        let wanted = Wanted { follow: true, tail: Some(0), stream: Some(stream.to_owned()), ..Wanted::default() };
        Self::new(run, wanted)
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        if !self.begun {
            self.begun = true;
            self.read_past().ok()?;
        }
        loop {
            if !self.ready.is_empty() {
                let chunk = self.ready.drain(..self.ready.len().min(CHUNK_BYTES)).collect();
                return Some(self.limited(chunk)).filter(|chunk| !chunk.is_empty());
            }
            if !self.wanted.follow {
                return None;
            }
            // The state first: what it wrote before it ended is read after.
            let over = !matches!(self.run.state(), Ok(State::Alive { .. }));
            self.read_on().ok()?;
            if self.ready.is_empty() {
                if over {
                    return None;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }

    fn limited(&mut self, mut chunk: Vec<u8>) -> Vec<u8> {
        if let Some(left) = &mut self.wanted.limit_bytes {
            chunk.truncate(*left);
            *left -= chunk.len();
        }
        chunk
    }

    /// What there is: the file before this one, and this one.
    fn read_past(&mut self) -> io::Result<()> {
        let mut all = read(&older(&self.run.log()))?.1;
        let (file, text) = read(&self.run.log())?;
        all.extend(text);
        self.file = file;
        self.take(&all);
        if let Some(lines) = self.wanted.tail {
            let ends: Vec<usize> = (0..self.ready.len()).filter(|at| self.ready[*at] == b'\n').collect();
            // A last line without an end counts too.
            let whole = self.ready.last().is_none_or(|byte| *byte == b'\n');
            let back = if whole { lines } else { lines.saturating_sub(1) };
            let cut = if lines == 0 { self.ready.len() } else { cut_at(&ends, back) };
            self.ready.drain(..cut);
        }
        Ok(())
    }

    fn read_on(&mut self) -> io::Result<()> {
        let mut text = Vec::new();
        if let Some(file) = &mut self.file {
            file.read_to_end(&mut text)?;
        }
        // A full log is renamed and a new one begun.
        let newest = std::fs::metadata(self.run.log()).map(|found| found.ino()).ok();
        let held = self.file.as_ref().and_then(|file| file.metadata().ok()).map(|found| found.ino());
        if newest.is_some() && newest != held {
            let (file, more) = read(&self.run.log())?;
            self.file = file;
            text.extend(more);
        }
        self.take(&text);
        Ok(())
    }

    /// Turns whole lines of the file into what is sent.
    fn take(&mut self, text: &[u8]) {
        self.rest.extend_from_slice(text);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        for line in whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            for piece in self.wanted.line(line).into_iter().flatten() {
                self.ready.extend_from_slice(piece);
            }
        }
    }
}

/// Where the last `lines` lines begin, given where lines end.
fn cut_at(ends: &[usize], lines: usize) -> usize {
    ends.len().checked_sub(lines + 1).map_or(0, |index| ends[index] + 1)
}

fn older(log: &Path) -> PathBuf {
    log.with_extension("1")
}

/// A file and what is in it; nothing if there is none.
fn read(path: &Path) -> io::Result<(Option<File>, Vec<u8>)> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(mut file) => {
            file.read_to_end(&mut text)?;
            Ok((Some(file), text))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((None, text)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(query: &str, log: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path(), 0);
        run.create().unwrap();
        std::fs::write(run.log(), log).unwrap();
        let wanted = Wanted::parse(query, "2026-01-01T00:01:00Z".parse().unwrap()).unwrap();
        let mut reader = Reader::new(run, wanted);
        let mut all = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        while let Some(chunk) = runtime.block_on(reader.next()) {
            all.extend(chunk);
        }
        String::from_utf8(all).unwrap()
    }

    const LOG: &str = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:30Z stderr P tw\n\
                       2026-01-01T00:00:31Z stderr F o\n2026-01-01T00:00:50Z stdout F  three\n";

    #[test]
    fn a_log_is_shown_as_it_was_written() {
        assert_eq!(sent("", LOG), "one\ntwo\n three\n");
        assert_eq!(sent("tailLines=1", LOG), " three\n");
        assert_eq!(sent("tailLines=2", LOG), "two\n three\n");
        assert_eq!(sent("tailLines=0", LOG), "");
        assert_eq!(sent("tailLines=9", LOG), "one\ntwo\n three\n");
        assert_eq!(sent("limitBytes=5", LOG), "one\nt");
        assert_eq!(sent("sinceSeconds=20", LOG), " three\n");
        assert_eq!(sent("stream=Stderr", LOG), "two\n");
        assert_eq!(sent("timestamps=true&tailLines=1", LOG), "2026-01-01T00:00:50Z  three\n");
        assert_eq!(sent("", ""), "");
    }

    #[test]
    fn what_is_no_number_is_named() {
        let error = Wanted::parse("tailLines=x", Timestamp::UNIX_EPOCH).unwrap_err();
        assert_eq!(error, "tailLines: \"x\" is no number");
    }
}
