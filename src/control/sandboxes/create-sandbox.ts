import type { Caller } from '../../domain/orgs/caller.ts'
import {
  asId,
  type CredentialId,
  type RunId,
  type SandboxId,
  type SnapshotId,
  type WorkerId,
} from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { quotaProblem } from '../../domain/orgs/quota-problem.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import { generateSlug } from '../../domain/names.ts'
import type { RegistrySelection, SandboxSpec } from '../../domain/spec/spec.ts'
import type { SecretValues } from '../../domain/spec/secrets.ts'
import { randomBelow } from '../../lib/random.ts'
import type { NewSandbox } from '../../store/sandboxes/admissions.ts'
import type { NewEvent } from '../../store/events/events.ts'
import * as credentials from '../../store/orgs/credentials.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import type { BaseDeps, DefaultRegistryDeps } from '../deps.ts'
import { PLACEMENT_TOPIC } from '../topics.ts'
import type { SandboxAdmitter } from './placement/admit-in-batch.ts'
import { noteChanges } from './note-changes.ts'
import { getSandbox, type SandboxReader } from './read-sandboxes.ts'
import { requireAbilities, type RequireAbilitiesDeps } from './requirements/require-abilities.ts'
import { traceWork, type TraceDeps } from '../requests/trace-work.ts'
import { idempotencyReplyLost, type IdempotentAttempt } from '../requests/idempotency.ts'
import { registryHostOf, inlinePasswordSealContext } from '../orgs/registry-auth.ts'
import { requireValidAuthority } from './requirements/require-authority.ts'
import { requireDiskSize, type DiskLimitDeps } from './requirements/require-disk-size.ts'
import { requirePorts, type PublishingReader } from './requirements/require-ports.ts'
import { requireAllowedNetwork, type NetworkDenialDeps } from './requirements/require-network.ts'
import { requireVolumes } from './requirements/require-volumes.ts'
import { sealInterceptKey, sealSecretValues } from './seal-secrets.ts'
import type { TransitionDeps } from './transitions/transition.ts'
import { acquireWaitPermit, waitWhileStarting, type WaitDeps } from './waits/wait-for-sandbox.ts'
import { withdrawCreate } from './withdraw-create.ts'
import { renderSpec, type SpecTexts } from './render-spec.ts'

type CreateDeps = Pick<BaseDeps, 'db' | 'clock' | 'random' | 'uuids' | 'seal' | 'notifications'> &
  DefaultRegistryDeps &
  DiskLimitDeps &
  PublishingReader &
  NetworkDenialDeps &
  SandboxReader &
  SandboxAdmitter &
  TransitionDeps &
  RequireAbilitiesDeps &
  TraceDeps &
  WaitDeps

export type CreateSandboxCommand = {
  readonly spec: SandboxSpec
  /** The requested name. Null: the sandbox is named like its slug. */
  readonly name: string | null
  /** The requested slug. Null: a free slug is generated. */
  readonly slug: string | null
  /** The texts of `spec`, if several sandboxes share them. Absent: they are rendered. */
  readonly texts?: SpecTexts
  readonly registry: RegistrySelection
  /** The values of the secrets in `spec`. Absent: it has none. */
  readonly secretValues?: SecretValues
  /** The key of the certificate authority in `spec`. Absent or null: it has none. */
  readonly interceptKey?: string | null
  readonly start: boolean
  /** With `start`: how long to wait for the sandbox to run, in milliseconds. Null: answer at once. */
  readonly waitMs: number | null
  /** Whether a sandbox that still starts at the end of the wait goes on (`keep`, the default) or is deleted. */
  readonly onTimeout?: 'keep' | 'cancel'
  /** The snapshot of `spec.snapshot_id`, with the worker that has it. Absent: the disk is made empty. */
  readonly origin?: { readonly id: SnapshotId; readonly worker_id: WorkerId }
  /** Aborted when the client disconnects. Null if the request does not wait. */
  readonly signal: AbortSignal | null
  /**
   * Present if the request has an Idempotency-Key. The sandbox gets the attempt's `resourceId`, so that a retry creates
   * no second sandbox.
   */
  readonly attempt?: IdempotentAttempt | null
  /** The span of the request, as a `traceparent`. Null or absent: the request is not traced. */
  readonly traceParent?: string | null
}

/** How many generated slugs are tried before the create is refused. */
const SLUG_TRIES = 8

/**
 * Creates a sandbox. The sandbox is durable before the call resolves. With `start`, its first run is admitted in the
 * same commit. Throws `invalid_request` for a disk beyond the operator's limit, `invalid_sandbox_config` for a field
 * that no worker can enforce, for a network that the operator denies, for a port that is not free and for an expired
 * authority, `name_already_exists`, `quota_exceeded`, `org_suspended`, `rate_limited`, and `start_timed_out` if the
 * wait ends too early and `onTimeout` is `cancel`.
 */
export async function createSandbox(deps: CreateDeps, caller: Caller, input: CreateSandboxCommand): Promise<Sandbox> {
  const existing = input.attempt?.isRetry === true ? await createdByEarlierAttempt(deps, caller, input.attempt) : null
  if (existing === null) {
    requireDiskSize(deps, input.spec)
    requireValidAuthority(deps, input.spec)
  }
  const needed = existing === null ? await requireAbilities(deps, caller.org_id, input.spec) : []
  if (existing === null) {
    await requireAllowedNetwork(deps, caller, input.spec.network)
    await requirePorts(deps, caller.org_id, input.spec.network)
    await requireCredential(deps, caller, input)
  }
  const releaseWait = input.start && input.waitMs !== null ? acquireWaitPermit(deps) : null
  const changes = noteChanges(deps.notifications)
  try {
    const sandbox = existing ?? (await admitSandbox(deps, caller, input, { abilities: needed, onAdmit: changes.of }))
    if (sandbox.status_reason === 'scheduling') deps.notifications.publish([PLACEMENT_TOPIC])
    if (!input.start || input.waitMs === null) return sandbox
    const isUnmet = existing === null && sandbox.status === 'starting' && !changes.hasAny()
    const wait = waitWhileStarting(deps, caller, sandbox.id, { waitMs: input.waitMs, signal: input.signal, isUnmet })
    changes.end()
    const waited = (await wait) ?? sandbox
    if (input.onTimeout !== 'cancel' || waited.status !== 'starting') return waited
    await withdrawCreate(deps, caller, waited, input.waitMs)
    return await getSandbox(deps, caller, { id: waited.id })
  } finally {
    changes.end()
    releaseWait?.()
  }
}

/**
 * The sandbox that an earlier attempt created, in its current state, or null. Throws `idempotency_reply_lost` if it was
 * deleted since.
 */
async function createdByEarlierAttempt(
  deps: CreateDeps,
  caller: Caller,
  attempt: IdempotentAttempt,
): Promise<Sandbox | null> {
  const { org_id } = caller
  const id = asId<SandboxId>(attempt.resourceId)
  const found = await deps.readSandbox({ org_id, id })
  if (found !== null) return found
  if (await deps.db.asOrg(org_id, (q) => sandboxes.existed(q, org_id, id)))
    throw idempotencyReplyLost('the sandbox was created and is gone since')
  return null
}

async function admitSandbox(
  deps: CreateDeps,
  caller: Caller,
  input: CreateSandboxCommand,
  { abilities, onAdmit }: { readonly abilities: readonly string[]; readonly onAdmit: (id: SandboxId) => void },
): Promise<Sandbox> {
  const texts = input.texts ?? (await renderSpec(input.spec))
  for (let tried = 1; ; tried++) {
    const slug = input.slug ?? generateSlug((below) => randomBelow(deps.random, below))
    const volume_ids = await requireVolumes(deps, caller, input.spec)
    const named = { ...input, ...texts, slug, name: input.name ?? slug }
    const sandbox: NewSandbox = { ...newSandbox(deps, caller, named, abilities), volume_ids }
    const placeable_image = isPlaceable(input, sandbox) ? input.spec.image : null
    const admission = { sandbox, events: eventsOf(deps, caller, sandbox, input.spec.image), placeable_image }
    if (input.waitMs !== null) onAdmit(sandbox.id)
    const answer = await traceWork(deps, admissionSpan(sandbox, input), () => deps.admitInBatch(admission))
    if (answer.kind === 'admitted') return toSandbox(answer.isPlaced ? { ...sandbox, status_reason: null } : sandbox)
    if (answer.kind === 'refused') throw quotaProblem(answer.refusal, answer.slug)
    if (answer.kind === 'failed') throw answer.error
    const { attempt = null } = input
    const existing = attempt === null ? null : await createdByEarlierAttempt(deps, caller, attempt)
    if (existing !== null) return existing // created by an attempt that was believed dead
    await refuseConflict(deps, caller, input)
    if (tried === SLUG_TRIES)
      throw new Problem('unavailable', { message: 'no free name and slug was found', retryAfterSeconds: 1 })
  }
}

/** Whether neither a disk, nor volumes, nor ports of a machine have a say in which worker runs a new sandbox. */
function isPlaceable({ start, spec, origin }: CreateSandboxCommand, { volume_ids }: NewSandbox): boolean {
  return start && origin === undefined && volume_ids.length === 0 && (spec.network.ports ?? []).length === 0
}

function admissionSpan({ id, org_id, created_at }: NewSandbox, { traceParent = null, spec }: CreateSandboxCommand) {
  const attributes = { 'sandyard.sandbox.id': id, 'sandyard.org.id': org_id, 'sandyard.image': spec.image }
  return { name: 'admission', traceParent, attributes, begunAt: created_at }
}

/**
 * Throws `name_already_exists` if the requested name or slug is taken. Returns if another try may succeed, because the
 * conflict was about a generated slug or a volume, or is already over.
 */
async function refuseConflict(deps: CreateDeps, caller: Caller, input: CreateSandboxCommand): Promise<void> {
  const { slug } = input
  const name = input.name ?? slug
  const isNameTaken =
    name !== null && (await deps.db.asOrg(caller.org_id, (q) => sandboxes.isNameTaken(q, caller.org_id, name)))
  if (isNameTaken) throw nameTaken('name', name)
  // Slugs are unique across all organizations.
  if (slug !== null && (await deps.db.asSystem((q) => sandboxes.isSlugTaken(q, slug)))) throw nameTaken('slug', slug)
}

/** The problem for a name or slug that another sandbox has. */
export function nameTaken(field: 'name' | 'slug', seen: string | null): Problem {
  return new Problem('name_already_exists', {
    message: `'${field}' already exists`,
    details: {
      field,
      seen,
      accepted: field === 'name' ? 'a name that no sandbox of the organization has' : 'a slug that no sandbox has',
    },
  })
}

async function requireCredential(
  deps: CreateDeps,
  caller: Caller,
  { registry, spec }: CreateSandboxCommand,
): Promise<void> {
  if (registry.mode !== 'specific') return
  const id = asId<CredentialId>(registry.credential_id)
  const found = await deps.db.asOrg(caller.org_id, (q) => credentials.findSealed(q, caller.org_id, id))
  const host = registryHostOf(spec.image, deps.settings.defaultRegistry)
  if (found?.host === host) return
  throw refusalProblem({
    code: 'invalid_request',
    field: 'registry.credential_id',
    seen: found === null ? registry.credential_id : `a credential for ${found.host}`,
    accepted: `the id of one of the organization's credentials for ${host}`,
  })
}

function newSandbox(
  deps: CreateDeps,
  caller: Caller,
  input: CreateSandboxCommand & SpecTexts & { readonly slug: string; readonly name: string },
  abilities: readonly string[],
): Omit<NewSandbox, 'volume_ids'> {
  const { spec, registry, start } = input
  const id = asId<SandboxId>(input.attempt?.resourceId ?? deps.uuids.next())
  const isInline = registry.mode === 'inline'
  return {
    id,
    org_id: caller.org_id,
    name: input.name,
    slug: input.slug,
    status: start ? 'starting' : 'created',
    status_reason: start ? 'scheduling' : null,
    ephemeral: spec.lifecycle.ephemeral,
    created_at: deps.clock.now(),
    vcpus: spec.resources.vcpus,
    memory_mib: spec.resources.memory_mib,
    disk_size_mib: spec.resources.disk_size_mib,
    max_duration_secs: spec.lifecycle.max_duration_secs,
    abilities,
    labels: spec.labels,
    spec_json: input.spec_json,
    projection_json: input.projection_json,
    parts_json: input.parts_json,
    encoded: input.encoded,
    registry_json: JSON.stringify(isInline ? { mode: registry.mode, username: registry.username } : registry),
    registry_sealed: isInline ? deps.seal.seal(registry.password, inlinePasswordSealContext(id)) : null,
    secrets_sealed: sealSecretValues(deps.seal, id, input.secretValues ?? new Map()),
    tls_key_sealed: sealInterceptKey(deps.seal, id, input.interceptKey ?? null),
    run_id: start ? asId<RunId>(deps.uuids.next()) : null,
    trace_parent: input.traceParent ?? null,
    snapshot_id: input.origin?.id ?? null,
    home_worker_id: input.origin?.worker_id ?? null,
  }
}

function toSandbox(sandbox: NewSandbox): Sandbox {
  const { id, org_id, name, slug, status, status_reason, ephemeral, created_at } = sandbox
  return {
    id,
    org_id,
    name,
    slug,
    status,
    ephemeral,
    created_at,
    last_failure_message: null,
    started_at: null,
    status_reason,
    stopped_at: null,
    run_id: sandbox.run_id,
    isolation: null,
    spec_json: sandbox.projection_json,
  }
}

function eventsOf(deps: CreateDeps, caller: Caller, sandbox: NewSandbox, image: string): readonly NewEvent[] {
  const { id, name, slug, run_id } = sandbox
  const common = { org_id: caller.org_id, timestamp: sandbox.created_at, sandbox_id: id, actor: caller.actor }
  const created: NewEvent = {
    ...common,
    id: deps.uuids.next(),
    event_type: 'sandbox_created',
    payload: { sandbox_id: id, name, slug, image },
  }
  if (run_id === null) return [created]
  const payload = { sandbox_id: id, name, run_id, cause: 'requested' }
  return [created, { ...common, id: deps.uuids.next(), event_type: 'sandbox_starting', payload }]
}
