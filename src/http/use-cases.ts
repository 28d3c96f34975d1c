import { createApiKey, getApiKey, listApiKeys, revokeApiKey } from '../control/orgs/api-keys.ts'
import { authenticate } from '../control/orgs/authenticate.ts'
import { createSandbox } from '../control/sandboxes/create-sandbox.ts'
import { createVolume } from '../control/volumes/create-volume.ts'
import { deleteSandbox } from '../control/sandboxes/delete-sandbox.ts'
import { deleteVolume } from '../control/volumes/delete-volume.ts'
import type { ControlDeps } from '../control/deps.ts'
import { claimIdempotencyKey } from '../control/requests/idempotency.ts'
import { listMembers } from '../control/orgs/members.ts'
import { openChannel } from '../control/streams/open-channel.ts'
import { getQuotas } from '../control/orgs/quotas.ts'
import { getEvent, listEvents } from '../control/events/read-events.ts'
import { readLogs } from '../control/streams/read-logs.ts'
import { getOrg } from '../control/orgs/read-org.ts'
import { getSandbox, listSandboxes } from '../control/sandboxes/read-sandboxes.ts'
import { getSandboxBreakdown, getStorageBreakdown, getUsage } from '../control/usage/read-usage.ts'
import { getVolume, listVolumes } from '../control/volumes/read-volumes.ts'
import { deleteCredential, listCredentials, saveCredential } from '../control/orgs/registry-credentials.ts'
import { renameSandbox } from '../control/sandboxes/rename-sandbox.ts'
import { startSandbox } from '../control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../control/sandboxes/stop-sandbox.ts'
import { waitForSandbox } from '../control/sandboxes/wait-for-sandbox.ts'
import { updateVolume } from '../control/volumes/update-volume.ts'
import * as volumeFiles from '../control/volumes/volume-files.ts'

/**
 * What the transport asks of the program, and all that it knows of it. Each throws `Problem` for a refusal that the
 * client is to meet; what each promises stands with it in `control/`.
 */
export type UseCases = ReturnType<typeof bindUseCases>

/** The program's use cases over what they stand on. */
export function bindUseCases(deps: ControlDeps) {
  const on =
    <Args extends readonly unknown[], Result>(useCase: (deps: ControlDeps, ...args: Args) => Result) =>
    (...args: Args): Result =>
      useCase(deps, ...args)
  return {
    authenticate: on(authenticate),
    createSandbox: on(createSandbox),
    getSandbox: on(getSandbox),
    listSandboxes: on(listSandboxes),
    explainWaiting: (...asked: Parameters<ControlDeps['explainWaiting']>) => deps.explainWaiting(...asked),
    waitForSandbox: on(waitForSandbox),
    takeTurn: on(claimIdempotencyKey),
    startSandbox: on(startSandbox),
    stopSandbox: on(stopSandbox),
    renameSandbox: on(renameSandbox),
    deleteSandbox: on(deleteSandbox),
    listVolumes: on(listVolumes),
    createVolume: on(createVolume),
    getVolume: on(getVolume),
    updateVolume: on(updateVolume),
    deleteVolume: on(deleteVolume),
    listVolumeFiles: on(volumeFiles.listVolumeFiles),
    statVolumeFile: on(volumeFiles.statVolumeFile),
    volumeFileExists: on(volumeFiles.volumeFileExists),
    readVolumeFile: on(volumeFiles.readVolumeFile),
    writeVolumeFile: on(volumeFiles.writeVolumeFile),
    makeVolumeFolder: on(volumeFiles.createVolumeFolder),
    copyVolumeFile: on(volumeFiles.copyVolumeFile),
    renameVolumeFile: on(volumeFiles.renameVolumeFile),
    removeVolumeFile: on(volumeFiles.removeVolumeFile),
    getOrg: on(getOrg),
    getQuotas: on(getQuotas),
    listMembers: on(listMembers),
    listApiKeys: on(listApiKeys),
    createApiKey: on(createApiKey),
    getApiKey: on(getApiKey),
    revokeApiKey: on(revokeApiKey),
    listCredentials: on(listCredentials),
    saveCredential: on(saveCredential),
    deleteCredential: on(deleteCredential),
    listEvents: on(listEvents),
    getEvent: on(getEvent),
    getUsage: on(getUsage),
    getSandboxBreakdown: on(getSandboxBreakdown),
    getStorageBreakdown: on(getStorageBreakdown),
    openChannel: on(openChannel),
    readLogs: on(readLogs),
  }
}
