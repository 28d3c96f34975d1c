import { pipeline } from 'node:stream/promises'
import { createWebSocketStream } from 'ws'
import { SNAPSHOT_FILES_PATH } from '../../contract/workers/worker-protocol.ts'
import { openSnapshotFiles } from '../../control/snapshots/open-snapshot-files.ts'
import { asId, type SnapshotId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { isUuid } from '../../lib/uuid.ts'
import type { UpgradeRoute } from '../streams/upgrades.ts'
import { authenticateSender, type AuthenticationDeps } from './worker-routes.ts'

/** The route on which a worker gets the files of a snapshot that another worker has. A transfer that breaks ends early. */
export function makeSnapshotFilesRoute(deps: AuthenticationDeps): UpgradeRoute {
  const { control } = deps
  return {
    path: `${SNAPSHOT_FILES_PATH}/{snapshot_id}`,
    handle: async (upgrade) => {
      const { address, headers, params, signal } = upgrade
      const reader = await authenticateSender(deps, { address, headers })
      const id = params['snapshot_id'] ?? ''
      if (!isUuid(id)) throw new Problem('snapshot_not_found')
      const asked = { snapshot_id: asId<SnapshotId>(id.toLowerCase()), reader: reader.id }
      const files = await openSnapshotFiles(control, asked, signal)
      try {
        const socket = createWebSocketStream(await upgrade.accept())
        socket.resume() // reads the end of the stream; the worker sends nothing
        await pipeline(files, socket)
      } catch (error) {
        control.log.warn({ error, ...asked }, 'the files of a snapshot could not be sent to the end')
      } finally {
        files.destroy()
      }
    },
  }
}
