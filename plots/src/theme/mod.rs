//! How things look: inks, strokes, markers, sizes. What a policy looks like is in `palette`.
//!
//! Figures are drawn in the light inks. The report maps each light ink to its dark twin with CSS, so a figure has
//! one set of bytes for both. Every ink has a contrast of at least 3:1 on its paper, text inks at least 4.5:1.

mod palette;

pub(crate) use palette::{Look, Palette, ordinal};

/// A colour with its twin for dark paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ink {
    /// Red, green, blue on light paper.
    pub(crate) light: [u8; 3],
    /// Red, green, blue on dark paper.
    pub(crate) dark: [u8; 3],
}

impl Ink {
    const fn new(light: u32, dark: u32) -> Self {
        Self { light: channels(light), dark: channels(dark) }
    }
}

const fn channels(rgb: u32) -> [u8; 3] {
    let [_, red, green, blue] = rgb.to_be_bytes();
    [red, green, blue]
}

/// Text and the strongest lines.
pub(crate) const TEXT: Ink = Ink::new(0x1f_23_28, 0xe6_ed_f3);
/// Secondary text.
pub(crate) const MUTED: Ink = Ink::new(0x57_60_6a, 0xa3_ae_ba);
/// Grid lines.
pub(crate) const GRID: Ink = Ink::new(0xe4_e7_eb, 0x2a_31_3a);
/// Axis lines and ticks.
pub(crate) const AXIS: Ink = Ink::new(0x87_90_9a, 0x6e_78_84);
/// Hatching, and lines that are context only.
pub(crate) const CONTEXT: Ink = Ink::new(0x8b_94_9e, 0x76_81_8d);
/// Warnings and the synthetic watermark.
pub(crate) const WARNING: Ink = Ink::new(0x95_38_00, 0xf0_b4_5b);
/// The paper.
pub(crate) const PAPER: Ink = Ink::new(0xff_ff_ff, 0x10_14_1a);

/// The hues that tell series apart, chosen to differ in lightness as well.
pub(crate) const BLUE: Ink = Ink::new(0x00_5f_a3, 0x5a_ab_f7);
pub(crate) const VERMILION: Ink = Ink::new(0xc9_4a_12, 0xff_8f_5c);
pub(crate) const PURPLE: Ink = Ink::new(0x6f_36_94, 0xc7_96_e8);
pub(crate) const GREEN: Ink = Ink::new(0x12_85_62, 0x45_c6_9b);
pub(crate) const GOLD: Ink = Ink::new(0x9a_71_00, 0xe3_b7_43);
pub(crate) const SKY: Ink = Ink::new(0x35_90_cc, 0x8e_cd_f4);
pub(crate) const MAGENTA: Ink = Ink::new(0xb9_37_79, 0xf3_8b_be);
pub(crate) const BROWN: Ink = Ink::new(0x5d_40_24, 0xc9_a5_80);
pub(crate) const GREY: Ink = Ink::new(0x6b_74_7d, 0x9c_a6_b1);

/// Surfaces from little to much. Words on the first five are in the text ink, on the others in that of the paper.
pub(crate) const SHADES: [Ink; 7] = [
    Ink::new(0xf1_f6_fb, 0x17_21_2c),
    Ink::new(0xd9_e8_f4, 0x1c_2f_42),
    Ink::new(0xb8_d5_ea, 0x21_3f_5c),
    Ink::new(0x8d_bb_dc, 0x28_51_76),
    Ink::new(0x67_a3_cf, 0x2f_66_91),
    Ink::new(0x2d_78_ad, 0x6a_a6_d4),
    Ink::new(0x0f_54_89, 0xa5_cd_ee),
];

/// The shade for a share of the way from least to most, and the ink of words on it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 6")]
pub(crate) fn shade(share: f64) -> (Ink, Ink) {
    let at = (share.clamp(0.0, 1.0) * 6.0).round() as usize;
    (SHADES[at], if at < 5 { TEXT } else { PAPER })
}

/// Every ink that a figure may contain, for the dark variant.
pub(crate) const INKS: &[Ink] = &[
    TEXT,
    MUTED,
    GRID,
    AXIS,
    CONTEXT,
    WARNING,
    PAPER,
    BLUE,
    VERMILION,
    PURPLE,
    GREEN,
    GOLD,
    SKY,
    MAGENTA,
    BROWN,
    GREY,
    palette::STEPS[0],
    palette::STEPS[1],
    palette::STEPS[2],
    palette::STEPS[3],
    palette::STEPS[4],
];

/// How a line is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dash {
    Solid,
    Dashed,
    Long,
    Dotted,
    Alternating,
}

impl Dash {
    /// Lengths of stroke and gap in pixels, in turn; empty for an unbroken line.
    pub(crate) fn pattern(self) -> &'static [f64] {
        match self {
            Self::Solid => &[],
            Self::Dashed => &[6.0, 4.0],
            Self::Long => &[12.0, 4.0],
            Self::Dotted => &[2.0, 3.5],
            Self::Alternating => &[8.0, 3.0, 2.0, 3.0],
        }
    }
}

/// The shape at each point of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Circle,
    Square,
    Diamond,
    Up,
    Down,
    Cross,
}

/// A line's ink, width and breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stroke {
    pub(crate) ink: Ink,
    /// Pixels.
    pub(crate) width: f64,
    pub(crate) dash: Dash,
}

/// Font sizes, in pixels of the page.
pub(crate) const TITLE_SIZE: f64 = 15.0;
pub(crate) const LABEL_SIZE: f64 = 12.0;
pub(crate) const TICK_SIZE: f64 = 11.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance of sRGB as WCAG 2 defines it.
    fn luminance([red, green, blue]: [u8; 3]) -> f64 {
        let linear = |channel: u8| {
            let c = f64::from(channel) / 255.0;
            if c <= 0.040_45 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_inks_have_contrast_of_at_least_four_and_a_half() {
        for ink in [TEXT, MUTED, WARNING] {
            assert!(contrast(ink.light, PAPER.light) >= 4.5, "{ink:?} on light paper");
            assert!(contrast(ink.dark, PAPER.dark) >= 4.5, "{ink:?} on dark paper");
        }
    }

    #[test]
    fn lines_have_contrast_of_at_least_three() {
        for ink in INKS.iter().filter(|ink| ![GRID, PAPER].contains(ink)) {
            assert!(contrast(ink.light, PAPER.light) >= 3.0, "{ink:?} on light paper");
            assert!(contrast(ink.dark, PAPER.dark) >= 3.0, "{ink:?} on dark paper");
        }
    }

    #[test]
    fn words_on_shades_can_be_read() {
        for at in 0..=6 {
            let (shade, words) = shade(f64::from(at) / 6.0);
            assert!(contrast(shade.light, words.light) >= 4.5, "{at} on light paper");
            assert!(contrast(shade.dark, words.dark) >= 4.5, "{at} on dark paper");
        }
    }

    #[test]
    fn shades_go_from_little_to_much_in_greyscale_too() {
        assert!(SHADES.windows(2).all(|pair| luminance(pair[0].light) > luminance(pair[1].light)));
        assert!(SHADES.windows(2).all(|pair| luminance(pair[0].dark) < luminance(pair[1].dark)));
    }

    #[test]
    fn no_two_inks_share_a_light_colour() {
        let inks: Vec<Ink> = INKS.iter().chain(&SHADES).copied().collect();
        for (at, ink) in inks.iter().enumerate() {
            assert!(
                inks[..at].iter().all(|other| other.light != ink.light),
                "{ink:?} would get two dark twins"
            );
        }
    }
}
