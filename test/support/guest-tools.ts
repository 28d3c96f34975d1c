import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'
import { mustCall } from './api.ts'
import type { RealServer } from './server.ts'

/**
 * Stores a program of this machine and its libraries in a new volume, because the demo image lacks it. Returns the mount, at
 * `/tools`. `guestTool` runs the program.
 */
export async function storeTool(server: Pick<RealServer, 'url' | 'key'>, name: string): Promise<object> {
  const { id } = await mustCall(server, 'create_volume', { body: { name } })
  const { stdout: program } = await runCommand('sh', ['-c', `command -v ${name}`], { timeoutMs: 5_000 })
  const { stdout: libraries } = await runCommand('ldd', [program.trim()], { timeoutMs: 5_000 })
  const found = [...libraries.matchAll(/=> (\/\S*)/g)].map(([, path = '']) => path)
  for (const path of [program.trim(), ...found]) {
    const headers = {
      authorization: `Bearer ${server.key}`,
      'x-msb-file-path': Buffer.from(basename(path)).toString('base64url'),
    }
    const url = `${server.url}/v1/volumes/${id}/files/content`
    const { status } = await fetch(url, { method: 'PUT', headers, body: readFileSync(path) })
    assert.ok(status < 300, String(status))
  }
  return { type: 'named', name, guest: '/tools' }
}

/** The start of a shell command that runs a stored program. */
export function guestTool(name: string): string {
  return `chmod +x /tools/${name}; exec env LD_LIBRARY_PATH=/tools /tools/${name}`
}
