import { open } from 'node:fs/promises'
import type { CommandRunner } from '../../../../lib/run-command.ts'
import { describeCheckFailure } from './check-failure.ts'

const CHECK_TIMEOUT_MS = 600_000

/** Whether a file system was unmounted cleanly: `s_state` has bit 0 and no error bit (ext4 on-disk format, superblock). */
export async function isClean(path: string): Promise<boolean> {
  const handle = await open(path, 'r')
  try {
    const state = Buffer.alloc(2)
    await handle.read(state, 0, 2, 1024 + 0x3a)
    return (state.readUInt16LE() & 3) === 1
  } finally {
    await handle.close()
  }
}

/** Checks and repairs the file system of a disk that isn't mounted. Rejects if it can't be repaired. */
export async function repair(commands: CommandRunner, path: string): Promise<void> {
  const result = await commands.attempt('e2fsck', ['-f', '-y', path], { timeoutMs: CHECK_TIMEOUT_MS })
  const failure = describeCheckFailure(result)
  if (failure !== null) throw new Error(failure)
}
