import { listFolder, makeFolder, readFile, removePath, writeFile } from '../lib/agent-files.ts'
import { openAgent, type Agent } from '../lib/agent.ts'
import type { FileStore } from './file-store.ts'

/** The files of a running sandbox, over one command channel, which is opened when it is needed and again after it ended. */
export function openSandboxFiles(sandboxId: string): FileStore & { close(): void } {
  let agent: Agent | null = null
  const ready = async (): Promise<Agent> => {
    if (agent === null) {
      const opened = openAgent(sandboxId)
      agent = opened
      void opened.closed.then(() => {
        if (agent === opened) agent = null
      })
    }
    const used = agent
    await used.ready
    return used
  }
  return {
    async list(path) {
      return (await listFolder(await ready(), path)).map(({ mtime, ...entry }) => ({
        ...entry,
        modifiedMs: mtime === null ? null : mtime * 1000,
      }))
    },
    read: async (path, onProgress) => readFile(await ready(), path, onProgress),
    write: async (path, content, onProgress) => writeFile(await ready(), path, content, onProgress),
    makeFolder: async (path) => makeFolder(await ready(), path),
    remove: async (entry) => removePath(await ready(), entry),
    close: () => agent?.close(),
  }
}
