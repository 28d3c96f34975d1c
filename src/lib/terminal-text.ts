/**
 * Control characters, and characters that change the direction of text. In a terminal they could clear the screen, hide a
 * line, or show a name in another order than it has.
 */
const UNPRINTABLE = /[\p{Cc}\p{Zl}\p{Zp}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu

/** Makes text that others wrote safe to print: each control character becomes an escape such as `\x1b` or `\u{202e}`. */
export function escapeControls(text: string): string {
  return text.toWellFormed().replace(UNPRINTABLE, (character) => {
    const code = character.codePointAt(0) ?? 0
    return code < 256 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u{${code.toString(16)}}`
  })
}

const ZERO_WIDTH = /^[\p{M}\p{Cf}]$/u
const WIDE =
  /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Emoji_Presentation}\u3000-\u303f\uff00-\uff60]$/u

/** The number of terminal columns that a text takes. */
export function displayWidth(text: string): number {
  let width = 0
  for (const character of text) width += widthOf(character)
  return width
}

function widthOf(character: string): number {
  if (character >= ' ' && character <= '~') return 1
  if (ZERO_WIDTH.test(character)) return 0
  return WIDE.test(character) ? 2 : 1
}

/** Shortens a text to at most `width` columns. A shortened text ends with `…`. */
export function truncate(text: string, width: number): string {
  if (displayWidth(text) <= width) return text
  let kept = ''
  let used = 1 // of the ellipsis
  for (const character of text) {
    used += widthOf(character)
    if (used > width) break
    kept += character
  }
  return `${kept}…`
}
