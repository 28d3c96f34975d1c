/** Calls `onKey` for each key that is pressed at a terminal, until it is disposed. Without a terminal it does nothing. */
export function readKeys(onKey: (key: string) => void): Disposable {
  const { stdin } = process
  if (!stdin.isTTY) return { [Symbol.dispose]: () => undefined }
  const onData = (bytes: Buffer): void => {
    const key = bytes.toString('utf8')
    if (key === CTRL_C)
      process.kill(process.pid, 'SIGINT') // a terminal in raw mode doesn't send it
    else onKey(key)
  }
  stdin.setRawMode(true)
  stdin.on('data', onData)
  return {
    [Symbol.dispose]() {
      stdin.off('data', onData)
      stdin.setRawMode(false)
      stdin.pause()
    },
  }
}

const CTRL_C = '\x03'
