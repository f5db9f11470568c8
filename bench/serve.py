#!/usr/bin/env python3
"""Loads `ddaebm serve` with wrk on loopback: requests a second, latencies, memory.

    bench/serve.py                       a small toy and a small MNIST model, 1, 16 and 256 connections,
                                         batching on and off, ten seconds each
    bench/serve.py --minutes 10          256 connections for so long, memory every half minute
Needs wrk (apt-get install wrk), and for the MNIST model its files (ddaebm data get mnist).
"""
import argparse, os, re, shutil, struct, subprocess, sys, tempfile, time, urllib.request

LUA = '''
local file = io.open(os.getenv("BENCH_BODY"), "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
'''
MODELS = {
    'toy': ['demo', '--set', 'train.iterations=50'],
    'mnist': ['mnist-paper', '--set', 'train.iterations=20', '--set', 'train.batch=64', '--set', 'net.branch=[512]',
              '--set', 'net.trunk=[1024,512]', '--set', 'net.encoder_branch=[512]', '--set', 'net.encoder_trunk=[512]',
              '--set', 'net.energy="mlp"'],
}


def npy(shape, data):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b' ' * (-(len(header) + 11) % 64) + b'\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + data


BODIES = {'toy': b'{"rows": [[0.5, -1.5]]}',
          'mnist': npy((1, 1, 28, 28), bytes(255 if 10 < i % 28 < 16 else 0 for i in range(784)))}


class Server:
    def __init__(self, program, run, *options):
        self.process = subprocess.Popen([program, 'serve', run, '--port', '0', *options], stdout=subprocess.PIPE, text=True)
        self.url = re.search(r'http://\S+', self.process.stdout.readline())[0].rstrip('/')

    def number(self, name):
        text = urllib.request.urlopen(self.url + '/metrics').read().decode()
        return int(re.search(rf'^{name} (\d+)', text, re.M)[1])

    def memory(self):
        return self.number('process_resident_memory_bytes') / 2**20

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0, 'the server did not end well'


def load(server, body, script, connections, seconds):
    before = server.number('ddaebm_batches_total'), server.number('ddaebm_batched_requests_total')
    text = subprocess.run(['wrk', f'-t{min(2, connections)}', f'-c{connections}', f'-d{seconds}s', '--latency', '-s', script,
                           server.url + '/v1/score'], env={**os.environ, 'BENCH_BODY': body}, check=True,
                          capture_output=True, text=True).stdout
    after = server.number('ddaebm_batches_total'), server.number('ddaebm_batched_requests_total')
    bad = re.search(r'Non-2xx or 3xx responses: (\d+)', text)
    sockets = re.search(r'Socket errors: (.*)', text)
    return {'rate': float(re.search(r'Requests/sec:\s*([\d.]+)', text)[1]),
            'p50': re.search(r'^\s*50%\s+(\S+)', text, re.M)[1], 'p99': re.search(r'^\s*99%\s+(\S+)', text, re.M)[1],
            'requests': int(re.search(r'(\d+) requests in', text)[1]),
            'errors': (int(bad[1]) if bad else 0) + (sum(map(int, re.findall(r'\d+', sockets[1]))) if sockets else 0),
            'together': (after[1] - before[1]) / max(1, after[0] - before[0])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--program', default='build/release/ddaebm')
    parser.add_argument('--seconds', type=int, default=10)
    parser.add_argument('--minutes', type=float, default=0)
    parser.add_argument('--models', default='toy,mnist')
    options = parser.parse_args()
    if not shutil.which('wrk'):
        sys.exit('wrk is missing: apt-get install wrk')
    with tempfile.TemporaryDirectory(prefix='ddaebm-serve-') as folder:
        script = f'{folder}/post.lua'
        open(script, 'w').write(LUA)
        print(f'{os.cpu_count()} cores, wrk beside the server')
        for model in options.models.split(','):
            run, body = f'{folder}/{model}', f'{folder}/{model}.body'
            open(body, 'wb').write(BODIES[model])
            trained = subprocess.run([options.program, 'train', *MODELS[model], '--out', run, '--quiet', '--set',
                                      'train.evaluation_samples=1000'], capture_output=True, text=True)
            if trained.returncode != 0:
                print(f'{model}: left out: {trained.stderr.strip()}')
                continue
            if options.minutes:
                soak(options, Server(options.program, run), model, body, script)
                continue
            print(f'{model:<6} {"batching":<9} {"connections":>11} {"requests/s":>11} {"p50":>9} {"p99":>9} {"together":>9} {"errors":>7}')
            for batching in ('on', 'off'):
                server = Server(options.program, run, *(['--batch', '1'] if batching == 'off' else []))
                load(server, body, script, 16, 1)
                for connections in (1, 16, 256):
                    found = load(server, body, script, connections, options.seconds)
                    print(f'{model:<6} {batching:<9} {connections:>11} {found["rate"]:>11.0f} {found["p50"]:>9} {found["p99"]:>9} '
                          f'{found["together"]:>9.1f} {found["errors"]:>7}', flush=True)
                server.stop()


def soak(options, server, model, body, script):
    load(server, body, script, 256, 10)
    first, errors, requests, begin = server.memory(), 0, 0, time.time()
    print(f'{model}: after ten seconds {first:.1f} MiB', flush=True)
    while time.time() - begin < 60 * options.minutes:
        found = load(server, body, script, 256, 30)
        errors += found['errors']
        requests += found['requests']
        print(f'{(time.time() - begin) / 60:5.1f} min  {server.memory():7.1f} MiB  {found["rate"]:.0f}/s  p99 {found["p99"]}  '
              f'errors {errors}', flush=True)
    print(f'{requests} requests, {errors} errors, memory {first:.1f} to {server.memory():.1f} MiB')
    server.stop()


if __name__ == '__main__':
    main()
