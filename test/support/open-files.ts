import { readdirSync, readlinkSync } from 'node:fs'
import { join } from 'node:path'
import { hasErrorCode } from '../../src/lib/error-code.ts'

/**
 * What this process holds open: the target of each descriptor. It is read in one turn of the event loop, but the thread
 * pool may close a descriptor meanwhile, and the one that lists the folder is closed already. Those are left out.
 */
export function openTargets(): readonly string[] {
  return readdirSync('/proc/self/fd').flatMap((fd) => {
    try {
      return [readlinkSync(join('/proc/self/fd', fd))]
    } catch (error) {
      if (hasErrorCode(error, 'ENOENT')) return []
      throw error
    }
  })
}
