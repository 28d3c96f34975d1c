/** Ports of sandboxes that are open to others than the keys of their organization. */
import type { OrgId, PreviewId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { Preview } from '../../domain/previews/preview.ts'
import type { SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import * as orgs from '../orgs/orgs.ts'
import type { Queryable } from '../postgres/database.ts'

const COLUMNS = 'id, org_id, sandbox_id, port, access, expires_at, created_at'

/**
 * Locks what counts previews, a sandbox and its organization, so that no other preview is added until the transaction ends. The sandbox
 * first: a new preview refers to it, and a transition locks the organization of a sandbox that it has locked.
 */
export async function lockCounts(
  tx: Queryable,
  { org_id, sandbox_id }: Pick<Preview, 'org_id' | 'sandbox_id'>,
): Promise<void> {
  const text = 'SELECT FROM sandboxes WHERE id = $1 FOR KEY SHARE'
  await tx.query({ name: 'previews.lockSandbox', text, values: [sandbox_id] })
  await orgs.lock(tx, org_id)
}

/** Adds a preview. Returns false if the sandbox already has `max`. */
export async function insert(
  tx: Queryable,
  { id, org_id, sandbox_id, port, access, expires_at, created_at }: Preview,
  { secretSha256, max }: { readonly secretSha256: Buffer | null; readonly max: number },
): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'previews.insert',
    text: `INSERT INTO previews (id, org_id, sandbox_id, port, access, expires_at, created_at, secret_sha256)
           SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE (SELECT count(*) FROM previews WHERE sandbox_id = $3) < $9`,
    values: [id, org_id, sandbox_id, port, access, expires_at, created_at, secretSha256, max],
  })
  return rowCount === 1
}

/** The number of ports of an organization that are open to everybody, and the most that there may be. Null: any number. */
export async function publicUse(
  q: Queryable,
  org: OrgId,
  now: Date,
): Promise<{ readonly used: number; readonly max: number | null }> {
  const { rows } = await q.query<{ readonly used: number; readonly max: number | null }>({
    name: 'previews.publicUse',
    text: `SELECT max_public_previews AS max, (SELECT count(*)::integer FROM previews p JOIN sandboxes s ON s.id = p.sandbox_id
             WHERE p.org_id = $1 AND p.access = 'public' AND s.visible_until IS NULL AND (p.expires_at IS NULL OR p.expires_at > $2)) AS used
           FROM org_limits WHERE org_id = $1`,
    values: [org, now],
  })
  return rows[0] ?? { used: 0, max: 0 }
}

/** The first `count` previews of a sandbox after the one with the id `after`, from the newest to the oldest. */
export async function page(
  q: Queryable,
  of: { readonly org_id: OrgId; readonly sandbox_id: SandboxId; readonly now: Date },
  { after, count }: { readonly after: string | null; readonly count: number },
): Promise<readonly Preview[]> {
  const { rows } = await q.query<Preview>({
    name: 'previews.page',
    text: `SELECT ${COLUMNS} FROM previews WHERE org_id = $1 AND sandbox_id = $2 AND (expires_at IS NULL OR expires_at > $3)
             AND ($4::uuid IS NULL OR id < $4) ORDER BY id DESC LIMIT $5`,
    values: [of.org_id, of.sandbox_id, of.now, after, count],
  })
  return rows
}

/** Deletes a preview. Returns null if the organization has none with this id. */
export async function remove(
  tx: Queryable,
  { org_id, sandbox_id, id }: Pick<Preview, 'org_id' | 'sandbox_id' | 'id'>,
): Promise<Preview | null> {
  const { rows } = await tx.query<Preview>({
    name: 'previews.remove',
    text: `DELETE FROM previews WHERE org_id = $1 AND sandbox_id = $2 AND id = $3 RETURNING ${COLUMNS}`,
    values: [org_id, sandbox_id, id],
  })
  return rows[0] ?? null
}

/** Deletes the previews of a sandbox that expired before now, so that they don't count. */
export async function removeExpired(tx: Queryable, sandbox: SandboxId, now: Date): Promise<void> {
  await tx.query({
    name: 'previews.removeExpired',
    text: 'DELETE FROM previews WHERE sandbox_id = $1 AND expires_at <= $2',
    values: [sandbox, now],
  })
}

/** A sandbox as previews need it. */
export type PreviewedSandbox = {
  readonly id: SandboxId
  readonly org_id: OrgId
  readonly name: string
  readonly status: SandboxStatus
  readonly is_org_suspended: boolean
  /** Its open run that has a worker. Null: it has none. */
  readonly run_id: RunId | null
  readonly worker_id: WorkerId | null
  /** Who may open the port, beside the keys of the organization. */
  readonly previews: readonly OpenPreview[]
}

/** `secret`: the SHA-256 of a link's secret in hex, or null for everybody. `until`: milliseconds since 1970, or null. */
type OpenPreview = { readonly id: PreviewId; readonly secret: string | null; readonly until: number | null }

/** The sandbox with this slug, and the previews of one of its ports. Reads all organizations, so `q` must be the system's. */
export async function findTarget(
  q: Queryable,
  { slug, port }: { readonly slug: string; readonly port: number },
): Promise<PreviewedSandbox | null> {
  const { rows } = await q.query<PreviewedSandbox>({
    name: 'previews.findTarget',
    text: `SELECT s.id, s.org_id, s.name, s.status, o.suspended_at IS NOT NULL AS is_org_suspended,
             r.id AS run_id, r.worker_id,
             coalesce((SELECT json_agg(json_build_object('id', p.id, 'secret', encode(p.secret_sha256, 'hex'), 'until', sandyard_ms(p.expires_at)))
               FROM previews p WHERE p.sandbox_id = s.id AND p.port = $2), '[]') AS previews
           FROM sandboxes s JOIN orgs o ON o.id = s.org_id
             LEFT JOIN runs r ON r.id = s.run_id AND r.ended_at IS NULL AND r.worker_id IS NOT NULL
           WHERE s.slug = $1 AND s.visible_until IS NULL`,
    values: [slug, port],
  })
  return rows[0] ?? null
}
