import { ExecFailure, type GuestProcess } from '../../../channel/guest.ts'
import { SessionLimitReached, type SessionPermits } from '../../../channel/session-permits.ts'
import type { Container } from '../container.ts'

/**
 * Starts a process if its sandbox and organization may open one more session. Rejects with `ExecFailure` of kind
 * `resource_limit` otherwise. The session counts until the process has ended and its streams are closed: a process in the
 * background may hold their descriptors for longer.
 */
export async function startWithPermit(
  sessions: SessionPermits,
  container: Pick<Container, 'id' | 'orgId'>,
  start: () => Promise<GuestProcess>,
): Promise<GuestProcess> {
  const release = acquire(sessions, container)
  try {
    const process = await start()
    void whenClosed(process).then(release)
    return process
  } catch (error) {
    release()
    throw error
  }
}

function acquire(sessions: SessionPermits, { id, orgId }: Pick<Container, 'id' | 'orgId'>): () => void {
  try {
    return sessions.acquire({ sandbox: id, org: orgId })
  } catch (error) {
    if (!(error instanceof SessionLimitReached)) throw error
    throw new ExecFailure('resource_limit', error.message, { errno: 11, errnoName: 'EAGAIN' })
  }
}

async function whenClosed({ exited, stdin, stdout, stderr }: GuestProcess): Promise<void> {
  const closed = [stdin, stdout, stderr].map(
    (stream) =>
      new Promise<void>((resolve) => {
        if (stream === null || stream.closed) resolve()
        else stream.once('close', resolve)
      }),
  )
  await Promise.all([exited, ...closed])
}
