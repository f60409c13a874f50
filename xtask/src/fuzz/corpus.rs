//! The inputs of a fuzz target between runs: an archive in the repository, a folder while it is worked on.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// An empty folder to work in.
pub(super) fn empty(fuzz: &Path, name: &str) -> Result<PathBuf> {
    let path = fuzz.join("target").join("corpus").join(name);
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    fs::create_dir_all(&path)?;
    Ok(path)
}

/// What is known of a target: its archive, and what was written by hand.
pub(super) fn unpack(fuzz: &Path, name: &str) -> Result<PathBuf> {
    let work = empty(fuzz, name)?;
    let archive = archive(fuzz, name);
    if archive.exists() {
        let file = File::open(&archive).with_context(|| archive.display().to_string())?;
        tar::Archive::new(GzDecoder::new(file)).unpack(&work).with_context(|| archive.display().to_string())?;
    }
    let by_hand = fuzz.join("corpus").join(name);
    if by_hand.exists() {
        for file in fs::read_dir(&by_hand)? {
            let file = file?;
            fs::copy(file.path(), work.join(file.file_name()))?;
        }
    }
    Ok(work)
}

/// Makes the archive of a target from the files of a folder; the same files give the same bytes.
pub(super) fn pack(fuzz: &Path, name: &str, inputs: &Path) -> Result<usize> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(inputs)?.map(|file| file.map(|file| file.path())).collect::<Result<_, _>>()?;
    files.sort();
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for path in &files {
        let content = fs::read(path)?;
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        let file = path.file_name().context("an input must have a name")?;
        tar.append_data(&mut header, file, content.as_slice())?;
    }
    let bytes = tar.into_inner()?.finish()?;
    let target = archive(fuzz, name);
    let unfinished = target.with_extension("unfinished");
    File::create(&unfinished)?.write_all(&bytes)?;
    fs::rename(unfinished, target)?;
    Ok(files.len())
}

fn archive(fuzz: &Path, name: &str) -> PathBuf {
    fuzz.join("corpus").join(format!("{name}.tar.gz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_survives_its_archive_and_gives_the_same_one_again() {
        let fuzz = tempfile::tempdir().unwrap();
        fs::create_dir_all(fuzz.path().join("corpus/t")).unwrap();
        fs::write(fuzz.path().join("corpus/t/by-hand"), "seed").unwrap();
        let found = empty(fuzz.path(), "found").unwrap();
        for (name, content) in [("b", "2"), ("a", "1")] {
            fs::write(found.join(name), content).unwrap();
        }
        assert_eq!(pack(fuzz.path(), "t", &found).unwrap(), 2);
        let first = fs::read(archive(fuzz.path(), "t")).unwrap();

        let work = unpack(fuzz.path(), "t").unwrap();
        assert_eq!(fs::read(work.join("a")).unwrap(), b"1");
        assert_eq!(fs::read(work.join("b")).unwrap(), b"2");
        assert_eq!(fs::read(work.join("by-hand")).unwrap(), b"seed");

        fs::remove_file(work.join("by-hand")).unwrap();
        pack(fuzz.path(), "t", &work).unwrap();
        assert_eq!(fs::read(archive(fuzz.path(), "t")).unwrap(), first);
    }
}
