/**
 * The ids of events say their order. A process makes them by its clock, and the clocks of several processes differ. So the statement that
 * inserts an event gives it a higher id if an earlier one has that already.
 */

/** SQL: the columns and expressions of an event that is inserted. */
type Inserted = { readonly id: string; readonly org: string; readonly sandbox: string }

/** SQL: the id of an event of a sandbox, which is higher than those of the events that the statement sees of that sandbox. */
export function orderedId({ id, org, sandbox }: Inserted): string {
  return higherId(
    id,
    `SELECT e.id FROM events e WHERE e.org_id = ${org} AND e.sandbox_id = ${sandbox}
     ORDER BY e.org_id, e.sandbox_id, e.id DESC LIMIT 1`,
  )
}

/** SQL: the same for an event that may have no sandbox. It is then higher than those of all events of the organization. */
export function orderedIdOfAny({ id, org, sandbox }: Inserted): string {
  const ofOrg = `SELECT e.id FROM events e WHERE e.org_id = ${org} ORDER BY e.org_id, e.id DESC LIMIT 1`
  return `CASE WHEN ${sandbox} IS NULL THEN ${higherId(id, ofOrg)} ELSE ${orderedId({ id, org, sandbox })} END`
}

/**
 * SQL: `id`, or one that is higher than the id that `latest` finds: the next in its 60 bits of time and count, as `makeUuids` counts, with the
 * random bits of `id`.
 */
function higherId(id: string, latest: string): string {
  const hex = (uuid: string): string => `replace(${uuid}::text, '-', '')`
  return `coalesce((
    SELECT (lpad(to_hex(CASE WHEN p.head & 4095 = 4095 THEN ((p.head >> 16) + 1) << 16 | 28672 ELSE p.head + 1 END), 16, '0')
      || right(${hex(id)}, 16))::uuid
    FROM (SELECT ('x' || left(${hex('l.id')}, 16))::bit(64)::bigint AS head FROM (${latest}) l WHERE l.id >= ${id}) p), ${id})`
}
