/** Shows what a long command does, on standard error. */
export type Progress = { readonly show: (text: string) => void; readonly end: () => void }

/** On a terminal, each text replaces the one before. Elsewhere each is a line. */
export function showProgress(): Progress {
  const { stderr } = process
  return {
    show(text) {
      stderr.write(stderr.isTTY ? `\r\u001b[K${text.slice(0, stderr.columns - 1)}` : `${text}\n`)
    },
    end() {
      if (stderr.isTTY) stderr.write('\r\u001b[K')
    },
  }
}
