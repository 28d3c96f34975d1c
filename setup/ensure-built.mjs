import { join } from 'node:path'
import { say, SetUpFailure } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'
import { openWorkshop } from './workshop.mjs'

/** The user may not write into the clone, or nobody may. */
const unwritable = new Set(['EACCES', 'EPERM', 'EROFS'])

/**
 * Builds the parts of a clone that are not up to date, with tools that are fetched if need be. If a part can't be built, says so and what
 * follows from it, and returns: the server starts nevertheless.
 */
export function ensureBuilt(root, parts, { node = join(root, '.setup', 'node') } = {}) {
  const missing = () => parts.filter((part) => !part.isBuilt())
  if (missing().length === 0) return
  orWithout(missing(), () =>
    withSetUpLock(join(root, '.setup', 'build.lock'), () => {
      const workshop = openWorkshop(root, node)
      try {
        for (const part of missing()) orWithout([part], () => part.build({ node, workshop }))
      } finally {
        workshop.close()
      }
    }),
  )
}

function orWithout(parts, work) {
  try {
    work()
  } catch (error) {
    if (!(error instanceof SetUpFailure) && !unwritable.has(error.code)) throw error
    say([error.message, ...parts.map((part) => part.without)].join('\n'))
  }
}
