const MAX_HEAD = 64 * 1024

/** Reads responses until the first final one. Returns whether it accepts an upgrade, or null until that is known. */
export function makeUpgradeReader(): (bytes: Buffer) => boolean | null {
  let held = ''
  return (bytes) => {
    held += bytes.toString('latin1')
    for (;;) {
      const [, status = ''] = /^HTTP\/1\.[01] (\d{3})/.exec(held) ?? []
      if (status === '') return held.length < 12 ? null : false
      if (status === '101') return true
      if (!status.startsWith('1')) return false
      const end = held.indexOf('\r\n\r\n')
      if (end === -1) return held.length > MAX_HEAD ? false : null
      held = held.slice(end + 4)
    }
  }
}
