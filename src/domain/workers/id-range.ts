/** A range of user and group ids of a host. Both ends belong to it. */
export type IdRange = { readonly first: number; readonly last: number }

/** How many user ids a sandbox has. An ordinary system has as many; uid 65534 is `nobody`. */
export const SANDBOX_IDS = 65_536

/** A user, a group or a file that already owns ids of the host. */
export type IdOwner = IdRange & {
  /** Describes the owner, such as `alice in /etc/subuid`. */
  readonly owner: string
}

/** Returns the owners whose ids overlap a range, each described with its ids. */
export function describeOverlaps(range: IdRange, owners: readonly IdOwner[]): readonly string[] {
  return owners
    .filter(({ first, last }) => first <= range.last && last >= range.first)
    .map(
      ({ owner, first, last }) => `${owner} (${first === last ? String(first) : `${String(first)}-${String(last)}`})`,
    )
}

/** Parses `/etc/subuid` or `/etc/subgid` (subuid(5)): lines of `name:first:count`. Skips other lines. */
export function parseSubordinateIds(text: string, file: string): readonly IdOwner[] {
  return fieldsOf(text).flatMap(([name = '', first, count]) =>
    isId(first) && isId(count) && Number(count) > 0
      ? [{ owner: `${name} in ${file}`, first: Number(first), last: Number(first) + Number(count) - 1 }]
      : [],
  )
}

/** Parses `/etc/passwd` or `/etc/group` (passwd(5), group(5)): the id is the third field. Skips other lines. */
export function parseAccounts(text: string, file: string): readonly IdOwner[] {
  return fieldsOf(text).flatMap(([name = '', , id]) =>
    isId(id) ? [{ owner: `${name} in ${file}`, first: Number(id), last: Number(id) }] : [],
  )
}

function fieldsOf(text: string): readonly (readonly string[])[] {
  return text.split('\n').map((line) => line.split(':'))
}

function isId(text: string | undefined): boolean {
  return text !== undefined && /^\d{1,10}$/.test(text)
}
