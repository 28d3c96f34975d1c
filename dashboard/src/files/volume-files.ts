import { at, get, post, send } from '../lib/api.ts'
import type { VolumeFile } from '../lib/types.ts'
import type { FileStore } from './file-store.ts'

/** Large files take long: the worker measures progress, not the page. */
const TRANSFER_LIMIT_MS = 60 * 60_000

/** The files of a volume, whether or not a sandbox mounts it. */
export function openVolumeFiles(volumeId: string): FileStore {
  const files = at`/v1/volumes/${volumeId}/files`
  return {
    async list(path) {
      const { entries } = await get<{ entries: readonly VolumeFile[] }>(files, { headers: pathHeader(path) })
      return entries
        .map(({ path: own, size, kind, modified_at }) => ({
          path: own,
          size,
          isFolder: kind === 'directory',
          modifiedMs: Date.parse(modified_at),
        }))
        .toSorted((a, b) => Number(b.isFolder) - Number(a.isFolder) || a.path.localeCompare(b.path))
    },
    async read(path) {
      const reply = await send('GET', `${files}/content`, { headers: pathHeader(path), limitMs: TRANSFER_LIMIT_MS })
      return reply.blob()
    },
    async write(path, content) {
      const headers = { ...pathHeader(path), 'content-type': 'application/octet-stream' }
      await send('PUT', `${files}/content`, { headers, body: content, limitMs: TRANSFER_LIMIT_MS })
    },
    makeFolder: (path) => post(`${files}/mkdir`, { path }),
    remove: ({ path, isFolder }) =>
      send('DELETE', files, { headers: { ...pathHeader(path), 'x-msb-file-recursive': String(isFolder) } }),
  }
}

/** A path as the API takes it: in UTF-8 as base64url without padding. */
function pathHeader(path: string): Record<string, string> {
  const binary = String.fromCharCode(...new TextEncoder().encode(path))
  return { 'x-msb-file-path': btoa(binary).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '') }
}
