/** RFC 5321, section 4.5.3.1: the limits of the part before the `@`, and of the whole address. */
const LOCAL_MAX_CHARS = 64
const EMAIL_MAX_CHARS = 254

/** Describes a valid e-mail address, for refusals. */
export const EMAIL_RULE = `an e-mail address of at most ${String(EMAIL_MAX_CHARS)} ASCII characters`

/**
 * RFC 5321, section 4.1.2: a dot-string and a host name after the `@`. Quoted forms are refused, because no mail
 * service assigns them.
 */
const EMAIL =
  /^([a-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[a-z0-9!#$%&'*+/=?^_`{|}~-]+)*)@[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*$/

/**
 * Parses an e-mail address and converts it to lower case, so that two spellings identify the same person. Returns null
 * for an invalid address.
 */
export function parseEmail(text: string): string | null {
  const email = text.toLowerCase()
  const local = EMAIL.exec(email)?.[1]
  return local !== undefined && local.length <= LOCAL_MAX_CHARS && email.length <= EMAIL_MAX_CHARS ? email : null
}

/** An e-mail address as audit events show it: the first character and the host, such as `a***@example.com`. */
export function redactEmail(email: string): string {
  return `${email.slice(0, 1)}***${email.slice(email.lastIndexOf('@'))}`
}
