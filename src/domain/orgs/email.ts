/** RFC 5321, 4.5.3.1: of the part before the `@`, and of the whole. */
const LOCAL_MAX_CHARS = 64
const EMAIL_MAX_CHARS = 254

/** The rule for an e-mail address, for refusals. */
export const EMAIL_RULE = `an e-mail address of at most ${String(EMAIL_MAX_CHARS)} ASCII characters`

/** RFC 5321, 4.1.2: a dot-string, without the quoted forms that no mail service gives out; a host name after the `@`. */
const EMAIL =
  /^([a-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[a-z0-9!#$%&'*+/=?^_`{|}~-]+)*)@[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*$/

/** The address in lower case, by which people are identified, or null for an invalid address. */
export function parseEmail(text: string): string | null {
  const email = text.toLowerCase()
  const local = EMAIL.exec(email)?.[1]
  return local !== undefined && local.length <= LOCAL_MAX_CHARS && email.length <= EMAIL_MAX_CHARS ? email : null
}
