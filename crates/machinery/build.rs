//! Compiles the interface files of Kubernetes' protobuf bodies into one descriptor set.

use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut files: Vec<PathBuf> =
        fs::read_dir("proto")?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|e| e == "proto"));
    files.sort();
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files(&files)?;
    let out = PathBuf::from(env::var("OUT_DIR")?).join("kubernetes.bin");
    fs::write(out, compiler.encode_file_descriptor_set())?;
    Ok(())
}
