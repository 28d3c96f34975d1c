import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import { ISOLATION_LEVEL_FACT, type IsolationLevel } from '../../../domain/isolation.ts'
import type { ImageConfig } from '../../images/image.ts'
import { LIFECYCLE_LINES, writeSystemLine } from '../../logs/lifecycle-lines.ts'
import {
  assertScriptNames,
  diskSizeMib,
  egressSecretsOf,
  requireDiskSize,
  requireSecrets,
  resolveImage,
} from '../shared/desired-run.ts'
import { hostPortsFact } from '../../../domain/workers/publishing.ts'
import type { SandboxNetwork } from '../../network/sandbox-network.ts'
import { CA_BUNDLES } from '../shared/ca-bundles.ts'
import { givenCertificates } from '../shared/trust-certificates.ts'
import { StartError, withStartFailure } from '../../start-error.ts'
import { prepareSurroundings, type VmSurroundings } from './vm-surroundings.ts'
import type { StartAttempt } from '../shared/run-supervisor.ts'
import type { VmContext } from './context.ts'
import { toStartError } from './vm-failures.ts'
import { skipExistingOutput } from './output-captures.ts'
import { describeIsolation, vmPaths } from './installation.ts'
import type { StoredSandbox } from './stored-sandboxes.ts'
import { startWorkload } from './start-workload.ts'
import { environmentOf, GIVEN_CERTIFICATES, makeVmConfig } from './make-vm-config.ts'
import { copiesFolder } from './release.ts'
import { callSdk, type EnvChange, type SdkRequest } from './sdk-client.ts'
import { copyPatchSources, findInLayers, isFolderMissing, pinMountSources } from './mount-sources.ts'
import { findVm } from './vm-process.ts'
import type { VmRunRecord } from './vm-records.ts'

/** Starts the microVM of a run and then its workload, and writes the run's record. Implements `RunOperations.start`. */
export async function startVm(
  context: VmContext,
  desired: DesiredRun,
  { record, ...attempt }: StartAttempt & { readonly record: VmRunRecord },
): Promise<void> {
  const { signal, stopwatch } = attempt
  const { home, storedSandboxes, records, installation } = context
  requireSecrets(desired)
  const network = await stopwatch.measure('network', attachNetwork(context, desired))
  const given = withStartFailure(
    'config',
    'the certificates of authorities could not be read',
    givenCertificates(desired),
  )
  const certificates = (await given) || context.uselessCertificate
  const surroundings = await prepareSurroundings(network, { folder: records.folderOf(desired.run_id), certificates })
  const paths = vmPaths(home, desired.sandbox_id)
  const known = await storedSandboxes.read(desired.sandbox_id)
  await skipExistingOutput(paths.logs, logPositionFile(context, record))
  const stored = known ?? (await createVm(context, desired, { ...attempt, surroundings }))
  if (known !== null) {
    await stopwatch.measure('mounts', pinMountSources(context, desired))
    const env = environmentMap(desired, caBundleOf(known))
    const request = { kind: 'start', name: paths.name, env: envChange(known.env ?? null, env) } as const
    await stopwatch.measure('runtime', callSdkForRun(context, desired, { request, surroundings, signal }))
    if (request.env !== null) await storedSandboxes.write(desired.sandbox_id, { ...known, env })
  }
  signal.throwIfAborted()
  const [vm] = await findVm(paths.name)
  if (vm === undefined) throw new StartError('runtime', 'the microVM ended immediately after its start')
  const facts = {
    image_digest: stored.image.digest,
    isolation: describeIsolation(installation.version),
    [ISOLATION_LEVEL_FACT]: 'microvm' satisfies IsolationLevel,
    disk_size_mib: String(stored.disk_size_mib),
    ...hostPortsFact(network.published),
  }
  // If the worker dies before the record contains the processes, the next worker finds them by their command lines.
  const has_workload = desired.spec.runtime.cmd !== null
  const watcher = await stopwatch.measure(
    'workload',
    startWorkload(context, desired, { image: stored.image.config, caBundle: caBundleOf(stored) }),
  )
  const started: VmRunRecord = { ...record, facts, started: { vm, watcher, has_workload } }
  records.write(started)
  resumeCapture(context, started)
  writeSystemLine(context.logs.writerOf(desired.sandbox_id), record.log_level, LIFECYCLE_LINES.started)
}

/** The runtime shows the guest another interface than that of its namespace. */
async function attachNetwork({ networks }: VmContext, desired: DesiredRun): Promise<SandboxNetwork> {
  const { interface: _, ...network } = desired.spec.network
  const attaching = networks.attach(desired.run_id, network, desired.network_ranges, egressSecretsOf(desired))
  return await withStartFailure('network', "the sandbox's network could not be made", attaching)
}

/** Creates a sandbox's microVM with its disk, and starts it for the first time. */
async function createVm(
  context: VmContext,
  desired: DesiredRun,
  { signal, stopwatch, surroundings }: StartAttempt & { readonly surroundings: VmSurroundings },
): Promise<StoredSandbox> {
  const { home, storedSandboxes, images, vmImages, settings } = context
  const { run_id, sandbox_id, spec } = desired
  const { workdir } = spec.runtime
  assertScriptNames(spec)
  const sizeMib = diskSizeMib(desired, settings)
  requireDiskSize(sizeMib, settings)
  await settings.diskReserve.require('the sandbox got no disk')
  const log = context.logs.writerOf(sandbox_id)
  const importing = resolveImage({ images, log }, desired, { pinned: null, signal }).then(async (found) => ({
    image: found,
    imported: await vmImages.importImage(found, signal),
  }))
  const { image, imported } = await stopwatch.measure('image', importing)
  const isInVolume = spec.mounts.some(({ guest }) => workdir === guest || workdir?.startsWith(`${guest}/`) === true)
  const caBundle = (await findInLayers(image.layers, CA_BUNDLES)) ?? GIVEN_CERTIFICATES
  const config = makeVmConfig(desired, {
    name: vmPaths(home, sandbox_id).name,
    image: imported,
    diskSizeMib: sizeMib,
    sources: await stopwatch.measure('mounts', pinMountSources(context, desired)),
    copies: await stopwatch.measure('files', copyPatchSources(context, desired, copiesFolder(context, run_id))),
    caBundle,
    makesWorkdir: workdir !== null && !isInVolume && (await isFolderMissing(image.layers, workdir)),
  })
  await stopwatch.measure(
    'runtime',
    callSdkForRun(context, desired, { request: { kind: 'create', config }, surroundings, signal }),
  )
  const stored = {
    image: { digest: image.digest, config: asPlainConfig(image.config) },
    disk_size_mib: sizeMib,
    env: environmentMap(desired, caBundle),
    ca_bundle: caBundle,
  }
  await storedSandboxes.write(sandbox_id, stored)
  await rm(copiesFolder(context, run_id), { recursive: true, force: true })
  return stored
}

function caBundleOf({ ca_bundle = GIVEN_CERTIFICATES }: StoredSandbox): string {
  return ca_bundle
}

function environmentMap({ spec }: DesiredRun, caBundle: string): Readonly<Record<string, string>> {
  return Object.fromEntries(environmentOf(spec, caBundle).map(({ key, value }) => [key, value]))
}

/** What changes the stored variables to those of the spec, whose secrets may have changed. Null: nothing. */
function envChange(
  stored: Readonly<Record<string, string>> | null,
  wanted: Readonly<Record<string, string>>,
): EnvChange | null {
  if (stored !== null && isDeepStrictEqual(stored, wanted)) return null
  return { set: wanted, removed: Object.keys(stored ?? {}).filter((key) => !Object.hasOwn(wanted, key)) }
}

function asPlainConfig({ env, entrypoint, cmd, workdir, user }: ImageConfig): ImageConfig {
  return { env, entrypoint, cmd, workdir, user }
}

type SdkCallForRun = {
  readonly request: SdkRequest
  readonly surroundings: VmSurroundings
  readonly signal: AbortSignal
}

async function callSdkForRun(context: VmContext, desired: DesiredRun, call: SdkCallForRun): Promise<void> {
  const answer = await callSdk({ home: context.home, label: desired.run_id, ...call })
  if (answer.kind === 'failed') throw await toStartError(answer, vmPaths(context.home, desired.sandbox_id), context.dir)
}

/**
 * Copies a run's output into the sandbox's log, from the position at which an earlier worker process stopped. May be repeated.
 */
export function resumeCapture(context: VmContext, record: VmRunRecord): void {
  context.captures.begin({
    run: record.run_id,
    sandbox: record.sandbox_id,
    folder: vmPaths(context.home, record.sandbox_id).logs,
    positionFile: logPositionFile(context, record),
  })
}

function logPositionFile({ records }: Pick<VmContext, 'records'>, { run_id }: Pick<VmRunRecord, 'run_id'>): string {
  return join(records.folderOf(run_id), 'log-position.json')
}
