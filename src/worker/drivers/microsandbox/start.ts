import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { ImageConfig } from '../../images/image.ts'
import { LIFECYCLE_LINES } from '../../logs/lifecycle-lines.ts'
import { attemptStart } from '../shared/attempt-start.ts'
import { StartError } from '../../start-error.ts'
import { newRunRecord } from '../shared/run-record.ts'
import { isScriptName } from '../shared/system-files.ts'
import type { VmContext } from './context.ts'
import { toStartError } from './vm-failures.ts'
import { skipExistingOutput } from './follow-exec-log.ts'
import { hostAddresses } from './host-addresses.ts'
import { describeIsolation, vmPaths } from './installation.ts'
import type { StoredSandbox } from './stored-sandboxes.ts'
import { startWorkload } from './start-workload.ts'
import { makeVmConfig } from './make-vm-config.ts'
import { copiesFolder, recordEnd } from './release.ts'
import { callSdk } from './sdk-client.ts'
import type { SdkRequest } from './sdk-request.ts'
import { copyPatchSources, isFolderMissing, pinMountSources } from './mount-sources.ts'
import { findVm } from './vm-process.ts'
import type { VmRunRecord } from './vm-records.ts'

/** Starts a run that is not known yet. Rejects with `StartError`; then nothing of it is left but its record, ended with that failure. */
export async function startVm(context: VmContext, wanted: DesiredRun, signal: AbortSignal): Promise<void> {
  const { idle_timeout_secs } = wanted.spec.lifecycle
  const record: VmRunRecord = { ...newRunRecord(wanted, context.bootId), idle_timeout_secs }
  await context.records.write(record)
  context.logs.writerOf(wanted.sandbox_id).openRun()
  await attemptStart({
    run: wanted.run_id,
    log: context.log,
    signal,
    bringUp: () => bringUp(context, wanted, { record, signal }),
    endWith: (outcome) => recordEnd(context, record, outcome),
  })
}

type BringUp = { readonly record: VmRunRecord; readonly signal: AbortSignal }

async function bringUp(context: VmContext, wanted: DesiredRun, { record, signal }: BringUp): Promise<void> {
  const { home, storedSandboxes, records, installation } = context
  const paths = vmPaths(home, wanted.sandbox_id)
  const known = await storedSandboxes.read(wanted.sandbox_id)
  await skipExistingOutput(paths.logs, logPositionFile(context, record))
  const own = known ?? (await makeDisk(context, wanted, signal))
  if (known !== null) {
    await pinMountSources(context, wanted)
    await ask(context, wanted, { request: { kind: 'start', name: paths.name }, signal })
  }
  signal.throwIfAborted()
  const [vm] = await findVm(paths.name)
  if (vm === undefined) throw new StartError('runtime', 'the microVM ended as soon as it had started')
  const facts = {
    image_digest: own.image.digest,
    isolation: describeIsolation(installation.version),
    disk_size_mib: String(own.disk_size_mib),
  }
  // A worker that dies before the record is whole leaves processes that the next one finds by their command lines.
  const has_workload = wanted.spec.runtime.cmd !== null
  const watcher = await startWorkload(context, wanted, own.image.config)
  const started: VmRunRecord = { ...record, facts, started: { vm, watcher, has_workload } }
  await records.write(started)
  followOutput(context, started)
  context.logs.writerOf(wanted.sandbox_id).system(LIFECYCLE_LINES.started)
}

/** Makes a sandbox's disk over its image and starts its virtual machine for the first time. */
async function makeDisk(context: VmContext, wanted: DesiredRun, signal: AbortSignal): Promise<StoredSandbox> {
  const { storedSandboxes, images, vmImages, settings } = context
  const { spec, default_disk_max_mib } = wanted
  const { workdir, scripts } = spec.runtime
  const bad = Object.keys(scripts).find((name) => !isScriptName(name))
  if (bad !== undefined) throw new StartError('config', `'${bad}' is not usable as the name of a script`)
  let how: 'pulled' | 'stored' = 'stored'
  const onFetched = (): void => {
    how = 'pulled'
  }
  const options = { policy: spec.pull_policy, auth: wanted.registry_auth, signal, onFetched }
  const image = await images.resolve(spec.image, options)
  context.logs.writerOf(wanted.sandbox_id).system(LIFECYCLE_LINES.image(image.reference, image.digest, how))
  const diskSizeMib =
    spec.resources.disk_size_mib ?? Math.min(settings.defaultDiskMib, default_disk_max_mib ?? Infinity)
  const isOfVolume = spec.mounts.some(({ guest }) => workdir === guest || workdir?.startsWith(`${guest}/`) === true)
  const plan = makeVmConfig(wanted, {
    name: vmPaths(context.home, wanted.sandbox_id).name,
    image: await vmImages.importImage(image, signal),
    diskSizeMib,
    sources: await pinMountSources(context, wanted),
    copies: await copyPatchSources(context, wanted, copiesFolder(context, wanted.run_id)),
    hostAddresses: hostAddresses(),
    makesWorkdir: workdir !== null && !isOfVolume && (await isFolderMissing(image.layers, workdir)),
  })
  await ask(context, wanted, { request: { kind: 'create', plan }, signal })
  const own = { image: { digest: image.digest, config: asPlainConfig(image.config) }, disk_size_mib: diskSizeMib }
  await storedSandboxes.write(wanted.sandbox_id, own)
  await rm(copiesFolder(context, wanted.run_id), { recursive: true, force: true })
  return own
}

function asPlainConfig({ env, entrypoint, cmd, workdir, user }: ImageConfig): ImageConfig {
  return { env, entrypoint, cmd, workdir, user }
}

type Asking = { readonly request: SdkRequest; readonly signal: AbortSignal }

async function ask(context: VmContext, wanted: DesiredRun, { request, signal }: Asking): Promise<void> {
  const answer = await callSdk({ home: context.home, request, label: wanted.run_id, signal })
  if (answer.kind === 'failed') throw await toStartError(answer, vmPaths(context.home, wanted.sandbox_id), context.dir)
}

/** Copies what a run's processes write into our own log, from where it was left; may be repeated. */
export function followOutput(context: VmContext, record: VmRunRecord): void {
  context.logs.writerOf(record.sandbox_id).openRun()
  context.captures.follow({
    run: record.run_id,
    sandbox: record.sandbox_id,
    folder: vmPaths(context.home, record.sandbox_id).logs,
    positionFile: logPositionFile(context, record),
  })
}

function logPositionFile({ records }: Pick<VmContext, 'records'>, { run_id }: Pick<VmRunRecord, 'run_id'>): string {
  return join(records.folderOf(run_id), 'log-position.json')
}
