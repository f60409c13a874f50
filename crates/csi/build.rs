//! Generates the Container Storage Interface from its interface file, without a protobuf compiler on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["csi/v1/csi.proto"], ["proto"])?;
    // What a driver does not implement answers so, as the interface wants it.
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(descriptors)?;
    Ok(())
}
