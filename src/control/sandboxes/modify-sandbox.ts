import { isDeepStrictEqual } from 'node:util'
import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import type { NormalizedPatch } from '../../domain/spec/normalize-secret-patch.ts'
import { blockingChange, planSecrets, type SecretsPlan } from '../../domain/spec/secret-plan.ts'
import { resolveSecrets } from '../../domain/spec/secrets.ts'
import { hasSameSecrets } from '../../domain/spec/same-secrets.ts'
import { projectNetwork } from '../../domain/spec/project-spec.ts'
import { isLockTimeout, isUnavailable, type Queryable } from '../../store/postgres/database.ts'
import * as sandboxSecrets from '../../store/sandboxes/sandbox-secrets.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { workerTopic } from '../topics.ts'
import type { Conditions } from './if-match.ts'
import { getSummary, type SandboxReader, type SandboxRef } from './read-sandboxes.ts'
import { requireSecrets, type RequireAbilitiesDeps } from './requirements/require-abilities.ts'
import { sealRunSecrets, sealSecretValues } from './seal-secrets.ts'
import { openState, secretsToKeep, type OpenedState } from './secrets-state.ts'

/** What a modification changes, or would change. */
export type Modification = Pick<SecretsPlan, 'changes' | 'conflicts'> & {
  readonly sandbox: string
  readonly status: sandboxSecrets.SecretsRow['status']
  readonly applied: boolean
  readonly policy: NormalizedPatch['patch']['policy']
}

type PlanDeps = Pick<BaseDeps, 'db' | 'clock' | 'seal'> & SandboxReader
type ModifyDeps = PlanDeps & WriteDeps & Pick<BaseDeps, 'notifications'> & RequireAbilitiesDeps

export type ModificationInput = NormalizedPatch & Pick<Conditions, 'beforeSpec'>

/** Plans a change of a sandbox's secrets, and changes nothing. Throws `sandbox_not_found`. */
export async function planModification(
  deps: PlanDeps,
  caller: Caller,
  ref: SandboxRef,
  { patch, beforeSpec }: ModificationInput,
): Promise<Modification> {
  const { id, spec_bytes } = await getSummary(deps, caller, ref)
  beforeSpec?.(spec_bytes ?? 0)
  const row = await deps.db.asOrg(caller.org_id, (q) => readRow(q, { caller, id, patch }, { locks: false }))
  const { changes, conflicts } = planSecrets(openState(deps.seal, id, row), patch)
  return { sandbox: row.name, status: row.status, applied: false, policy: patch.policy, changes, conflicts }
}

/**
 * Changes the secrets of a sandbox: all changes or none. May be repeated. Throws `modification_refused` for a conflict,
 * and for a change that what runs can't get. Throws `modification_failed` if the database failed, and
 * `modification_in_progress` if another change of the sandbox holds it for too long.
 */
export async function modifySandbox(
  deps: ModifyDeps,
  caller: Caller,
  ref: SandboxRef,
  input: ModificationInput,
): Promise<Modification> {
  let isBegun = false
  try {
    const { id, spec_bytes } = await getSummary(deps, caller, ref)
    input.beforeSpec?.(3 * (spec_bytes ?? 0)) // PostgreSQL reads it twice, and writes it
    const before = await deps.db.asOrg(caller.org_id, (q) =>
      readRow(q, { caller, id, patch: input.patch }, { locks: false }),
    )
    const { next } = applicablePlan(openState(deps.seal, id, before), input)
    if (before.network.secrets.length === 0 && next.length > 0)
      await requireSecrets(deps, caller.org_id, before.abilities)
    isBegun = true
    const { applied, notified } = await deps.db.transaction(caller.org_id, (tx) =>
      apply(deps, tx, { caller, id, input }),
    )
    if (notified !== null) deps.notifications.publish([workerTopic(notified)])
    return applied
  } catch (error) {
    if (isLockTimeout(error)) throw new Problem('modification_in_progress', { cause: error, retryAfterSeconds: 1 })
    if (!isUnavailable(error)) throw error
    const saved = isBegun ? 'it is unknown whether the change was saved' : 'nothing was saved'
    throw new Problem('modification_failed', { message: `${saved}; it is safe to send it again`, cause: error })
  }
}

type Change = { readonly caller: Caller; readonly id: SandboxId; readonly input: NormalizedPatch }
/** What was done, and the worker to notify after the commit. */
type Applied = { readonly applied: Modification; readonly notified: WorkerId | null }

async function apply(deps: ModifyDeps, tx: Queryable, { caller, id, input }: Change): Promise<Applied> {
  const row = await readRow(tx, { caller, id, patch: input.patch }, { locks: true })
  const state = openState(deps.seal, id, row)
  const { changes, conflicts, next } = applicablePlan(state, input)
  const { name: sandbox, status } = row
  const applied = { sandbox, status, applied: true, policy: input.patch.policy, changes, conflicts }
  const names = new Set(next.map(({ env_var }) => env_var))
  const values = new Map([...state.values, ...input.values].filter(([name]) => names.has(name)))
  const network = { ...row.network, secrets: next }
  if (hasSameSecrets(next, row.network.secrets) && isDeepStrictEqual(values, state.values))
    return { applied, notified: null }
  const isLive = changes.some(({ disposition }) => disposition === 'live')
  const kept = secretsToKeep(state, { changes, after: resolveSecrets(network, values), isLive })
  if (kept !== null && row.open_run_id !== null)
    await sandboxSecrets.writeOfRun(tx, row.open_run_id, sealRunSecrets(deps.seal, row.open_run_id, kept))
  const secrets_sealed = sealSecretValues(deps.seal, id, values)
  const network_json = JSON.stringify(network)
  const projection_json = JSON.stringify({ ...projectNetwork(network), ports: row.shown_ports })
  const hasSecrets = next.length > 0
  await sandboxSecrets.write(tx, id, { network_json, projection_json, secrets_sealed, hasSecrets, isLive })
  const payload = { sandbox_id: id, name: sandbox, changes: changes.map(describeChange) }
  const { org_id, actor } = caller
  await recordEvent(deps, tx, { org_id, actor, event_type: 'sandbox_secrets_changed', payload })
  return { applied, notified: isLive ? row.home_worker_id : null }
}

function applicablePlan(state: OpenedState, { patch }: NormalizedPatch): SecretsPlan {
  const plan = planSecrets(state, patch)
  const [conflict] = plan.conflicts
  if (conflict !== undefined)
    throw new Problem('modification_refused', { message: conflict.message, details: conflict })
  const blocking = blockingChange(plan)
  if (blocking === null) return plan
  const { field, reason = '' } = blocking
  const accepted = 'policy next_start, or the change while the sandbox is stopped'
  const message = `${describeChange(blocking)}: ${reason}; accepted: ${accepted}`
  throw new Problem('modification_refused', { message, details: { field, seen: reason, accepted } })
}

function describeChange(change: SecretsPlan['changes'][number]): string {
  return change.kind === 'secret' ? `${change.name} ${change.change}` : `${change.field} ${change.change}`
}

type Sought = Pick<Change, 'caller' | 'id'> & Pick<NormalizedPatch, 'patch'>

async function readRow(
  q: Queryable,
  { caller: { org_id }, id, patch }: Sought,
  { locks }: { readonly locks: boolean },
): Promise<sandboxSecrets.SecretsRow> {
  const names = patch.secrets.map(({ env_var }) => env_var)
  const row = await sandboxSecrets.read(q, { org_id, id }, { names, locks })
  if (row === null) throw new Problem('sandbox_not_found')
  return row
}
